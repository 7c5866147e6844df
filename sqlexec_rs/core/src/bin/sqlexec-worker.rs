//! The worker process of an executor with `isolation="process"`; a pool starts it, and it speaks to that pool alone.

fn main() {
    sqlexec_core::worker_main()
}
