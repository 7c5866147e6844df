//! The worker process of an executor with `isolation="process"`. A pool starts it and is its only client.

fn main() {
    sqlexec_core::worker_main()
}
