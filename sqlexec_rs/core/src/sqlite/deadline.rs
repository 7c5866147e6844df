//! The bounds that stop a run: wall clock, CPU time of the thread, VM steps, cancellation.
//!
//! SQLite calls the progress handler every [`HANDLER_PERIOD`] instructions of its virtual machine. The handler
//! belongs to a connection. The [`RunGuard`] that it reads belongs to the worker thread and is armed for each run.
//! Where SQLite works for long without calling the handler, the [`meter`](crate::sqlite::meter) and our own functions
//! check the bounds too.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::locks::lock;
use crate::outcome::Stop;
use crate::request::Limits;

/// Unit of the step budget in virtual machine instructions; 10 to 20 µs of a typical query.
pub const STEP_PERIOD: u32 = 1_000;

/// Instructions between two calls of the handler. Most calls only count. If values are large, so that an instruction
/// may take a millisecond, each call checks the clocks.
pub const HANDLER_PERIOD: u32 = 100;

/// Handler calls per [`STEP_PERIOD`].
const CALLS_A_PERIOD: u64 = (STEP_PERIOD / HANDLER_PERIOD) as u64;

/// Bytes that one of our functions processes at the cost of one VM step.
pub const BYTES_A_STEP: u64 = 64;

/// Number of checks per read of the CPU clock, which is a system call.
const CPU_CHECK_EVERY: u32 = 4;

/// Stops the run of one worker thread. Shared with the progress handlers of its connections.
#[derive(Debug, Default)]
pub struct RunGuard {
    run: Mutex<RunBounds>,
    /// Handler calls since execution started. Written only by the worker's thread.
    calls: AtomicU64,
    /// Whether the run has handled large values, so that an instruction may take long.
    has_large_values: AtomicBool,
}

#[derive(Debug, Default)]
struct RunBounds {
    wall: Option<Instant>,
    cpu: Option<Duration>,
    /// The step budget, rounded up to whole periods.
    max_steps: Option<u64>,
    /// Bytes that our functions processed beyond the amount expected per instruction.
    charged_bytes: u64,
    cancel: Option<Arc<AtomicBool>>,
    looks: u32,
    is_executing: bool,
    stop: Option<Stop>,
}

impl RunGuard {
    /// Arms the bounds of a run that starts at `now`.
    pub fn arm(&self, limits: &Limits, cancel: Option<Arc<AtomicBool>>, now: Instant) {
        self.calls.store(0, Ordering::Relaxed);
        self.has_large_values.store(false, Ordering::Relaxed);
        *self.lock() = RunBounds {
            wall: limits.timeout.and_then(|timeout| now.checked_add(timeout)),
            cpu: limits.cpu.map(|cpu| thread_cpu_time() + cpu),
            max_steps: limits.vm_steps.map(rounded_up),
            cancel,
            ..RunBounds::default()
        };
    }

    /// Marks the end of prepare; VM steps count from here. Prepare may load the schema, at a cost that depends on the
    /// connection's history.
    pub fn start_executing(&self) {
        self.calls.store(0, Ordering::Relaxed);
        self.lock().is_executing = true;
    }

    /// Records that the run handles large values: each later handler call checks the clocks.
    pub(crate) fn note_large_values(&self) {
        self.has_large_values.store(true, Ordering::Relaxed);
    }

    /// Returns whether the run has a wall-clock deadline.
    pub(crate) fn has_deadline(&self) -> bool {
        self.lock().wall.is_some()
    }

    /// Disarms every bound. Returns the bound that stopped the run, if any.
    pub fn disarm(&self) -> Option<Stop> {
        std::mem::take(&mut *self.lock()).stop
    }

    /// Implements the progress handler; returns true to interrupt the statement.
    pub fn must_stop(&self) -> bool {
        let calls = self.calls.load(Ordering::Relaxed) + 1;
        self.calls.store(calls, Ordering::Relaxed);
        // The budget is checked once per period and nowhere else. Otherwise its verdict would depend on the cause of
        // large values.
        if calls.is_multiple_of(CALLS_A_PERIOD) {
            self.lock().check(Some(calls))
        } else {
            self.has_large_values.load(Ordering::Relaxed) && self.lock().check(None)
        }
    }

    /// Checks the clocks between rows and elsewhere where steps are few and slow.
    pub fn must_stop_between_rows(&self) -> bool {
        self.lock().check(None)
    }

    /// Charges work on `bytes` bytes to the step budget during execution and checks every bound; returns true to stop
    /// the run.
    pub fn charge(&self, bytes: u64) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        let mut run = self.lock();
        if run.is_executing {
            run.charged_bytes = run.charged_bytes.saturating_add(bytes);
        }
        run.check(Some(calls))
    }

    /// Returns the steps since `start_executing`. SQLite counts only the low 32 bits; the rest follows from the
    /// handler calls, one per period.
    pub fn whole_steps(&self, low_bits: u32) -> u64 {
        let about = self.calls.load(Ordering::Relaxed) * u64::from(HANDLER_PERIOD);
        let ahead = low_bits.wrapping_sub(about as u32).cast_signed();
        match about.checked_add_signed(i64::from(ahead)) {
            Some(steps) => steps,
            None => u64::from(low_bits),
        }
    }

    /// Returns the steps charged by functions.
    pub fn charged_steps(&self) -> u64 {
        self.lock().charged_bytes / BYTES_A_STEP
    }

    fn lock(&self) -> MutexGuard<'_, RunBounds> {
        lock(&self.run)
    }
}

impl RunBounds {
    /// Checks every bound; the step budget only if the number of handler calls is given.
    fn check(&mut self, calls: Option<u64>) -> bool {
        if self.stop.is_none() {
            self.stop = self.find_stop(calls);
        }
        self.stop.is_some()
    }

    fn find_stop(&mut self, calls: Option<u64>) -> Option<Stop> {
        if self.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            return Some(Stop::Cancelled);
        }
        // Steps are checked before clocks: if both are exceeded, the reproducible verdict wins.
        if self.is_executing && calls.is_some_and(|calls| self.has_spent_steps(calls)) {
            return Some(Stop::VmSteps);
        }
        if self.wall.is_some_and(|deadline| Instant::now() >= deadline) {
            return Some(Stop::Wall);
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(CPU_CHECK_EVERY) && self.cpu.is_some_and(|deadline| thread_cpu_time() >= deadline)
        {
            return Some(Stop::Cpu);
        }
        None
    }

    fn has_spent_steps(&self, calls: u64) -> bool {
        let steps = calls * u64::from(HANDLER_PERIOD) + self.charged_bytes / BYTES_A_STEP;
        self.max_steps.is_some_and(|max| steps >= max)
    }
}

/// Rounds a budget up to whole periods, saturating at the maximum.
fn rounded_up(steps: u64) -> u64 {
    steps.max(1).checked_next_multiple_of(u64::from(STEP_PERIOD)).unwrap_or(u64::MAX)
}

/// Returns the CPU time of this thread.
fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { timeout: None, ..Limits::default() }
    }

    #[test]
    fn steps_count_only_while_executing() {
        let guard = RunGuard::default();
        guard.arm(&Limits { vm_steps: Some(1_500), ..limits() }, None, Instant::now());
        assert!((0..500).all(|_| !guard.must_stop()));
        guard.start_executing();
        assert!((0..2 * CALLS_A_PERIOD - 1).all(|_| !guard.must_stop()));
        assert!(!guard.must_stop_between_rows());
        assert!(guard.must_stop());
        assert_eq!(guard.disarm(), Some(Stop::VmSteps));
        assert!((0..100).all(|_| !guard.must_stop()));
    }

    #[test]
    fn work_of_functions_counts_as_steps() {
        let guard = RunGuard::default();
        guard.arm(&Limits { vm_steps: Some(2_000), ..limits() }, None, Instant::now());
        guard.start_executing();
        assert!((0..CALLS_A_PERIOD).all(|_| !guard.must_stop()));
        assert!(!guard.charge(BYTES_A_STEP * 999));
        assert_eq!(guard.charged_steps(), 999);
        assert!(guard.charge(BYTES_A_STEP));
        assert_eq!(guard.disarm(), Some(Stop::VmSteps));
    }

    #[test]
    fn largest_budget_does_not_wrap() {
        let guard = RunGuard::default();
        guard.arm(&Limits { vm_steps: Some(u64::MAX), ..limits() }, None, Instant::now());
        guard.start_executing();
        assert!((0..100 * CALLS_A_PERIOD).all(|_| !guard.must_stop()));
        assert_eq!((rounded_up(0), rounded_up(1_001), rounded_up(u64::MAX - 1)), (1_000, 2_000, u64::MAX));
    }

    #[test]
    fn steps_are_counted_beyond_32_bits() {
        let guard = RunGuard::default();
        for (calls, low_bits, whole) in [
            (0, 7, 7),
            (3, 299, 299),
            (3, 4_000, 4_000),
            (42_949_673, 5, (1 << 32) + 5),
            (42_949_672, u32::MAX, u64::from(u32::MAX)),
            (120_000_000, 12_000_000_050_u64 as u32, 12_000_000_050),
        ] {
            guard.calls.store(calls, Ordering::Relaxed);
            assert_eq!(guard.whole_steps(low_bits), whole);
        }
    }

    #[test]
    fn clocks_and_cancellation_stop() {
        let guard = RunGuard::default();
        guard.arm(&Limits { timeout: Some(Duration::ZERO), ..limits() }, None, Instant::now());
        assert!(guard.must_stop_between_rows());
        assert_eq!(guard.disarm(), Some(Stop::Wall));

        guard.arm(&Limits { cpu: Some(Duration::ZERO), ..limits() }, None, Instant::now());
        assert!((0..CPU_CHECK_EVERY).any(|_| guard.must_stop_between_rows()));
        assert_eq!(guard.disarm(), Some(Stop::Cpu));

        let cancel = Arc::new(AtomicBool::new(false));
        guard.arm(&limits(), Some(Arc::clone(&cancel)), Instant::now());
        assert!(!guard.must_stop_between_rows());
        cancel.store(true, Ordering::Relaxed);
        assert!((0..CALLS_A_PERIOD).any(|_| guard.must_stop()));
        assert_eq!(guard.disarm(), Some(Stop::Cancelled));
    }
}
