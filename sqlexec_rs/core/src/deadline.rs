//! The bounds that stop a run: wall clock, CPU time of the thread, VM steps, cancellation.
//!
//! SQLite asks the progress handler every [`STEP_PERIOD`] instructions of its virtual machine. The handler belongs to a
//! connection and lives as long; what it reads, the [`Control`], belongs to the worker thread and is armed for each run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::outcome::Stop;
use crate::request::Limits;

/// Instructions of SQLite's virtual machine between two questions to the handler: 10 to 20 µs, and no measurable cost.
pub const STEP_PERIOD: u32 = 1_000;

/// Reading the CPU clock is a system call, so it is read at every fourth question only.
const CPU_CHECK_EVERY: u32 = 4;

/// Stops the run of one worker thread; shared with the progress handlers of its connections.
#[derive(Debug, Default)]
pub struct Control {
    run: Mutex<Run>,
}

#[derive(Debug, Default)]
struct Run {
    wall: Option<Instant>,
    cpu: Option<Duration>,
    periods_left: Option<u64>,
    cancel: Option<Arc<AtomicBool>>,
    calls: u32,
    is_executing: bool,
    stop: Option<Stop>,
}

impl Control {
    /// Arms the bounds of a run, which starts now.
    pub fn arm(&self, limits: &Limits, cancel: Option<Arc<AtomicBool>>, now: Instant) {
        *self.lock() = Run {
            wall: limits.timeout.and_then(|timeout| now.checked_add(timeout)),
            cpu: limits.cpu.map(|cpu| thread_cpu_time() + cpu),
            periods_left: limits.vm_steps.map(|steps| steps.div_ceil(u64::from(STEP_PERIOD))),
            cancel,
            ..Run::default()
        };
    }

    /// Marks the end of prepare: from here on VM steps count. (A prepare may load the schema, which takes steps that depend
    /// on what the connection did before.)
    pub fn start_executing(&self) {
        self.lock().is_executing = true;
    }

    /// Disarms every bound and returns what stopped the run, if something did.
    pub fn disarm(&self) -> Option<Stop> {
        std::mem::take(&mut *self.lock()).stop
    }

    /// Answers the progress handler: true interrupts the statement.
    pub fn must_stop(&self) -> bool {
        self.lock().check(true)
    }

    /// Checks the clocks between rows, for statements whose steps are few and slow.
    pub fn must_stop_between_rows(&self) -> bool {
        self.lock().check(false)
    }

    fn lock(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    fn check(&mut self, is_period: bool) -> bool {
        if self.stop.is_none() {
            self.stop = self.find_stop(is_period);
        }
        self.stop.is_some()
    }

    fn find_stop(&mut self, is_period: bool) -> Option<Stop> {
        if self.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            return Some(Stop::Cancelled);
        }
        // Steps come before clocks: where both are set, the verdict that every machine shares is the one to give.
        if is_period && self.is_executing && self.spend_period() {
            return Some(Stop::VmSteps);
        }
        if self.wall.is_some_and(|deadline| Instant::now() >= deadline) {
            return Some(Stop::Wall);
        }
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(CPU_CHECK_EVERY) && self.cpu.is_some_and(|deadline| thread_cpu_time() >= deadline)
        {
            return Some(Stop::Cpu);
        }
        None
    }

    /// Spends one period of the step budget; true when none was left.
    fn spend_period(&mut self) -> bool {
        match &mut self.periods_left {
            None => false,
            Some(left) => {
                *left = left.saturating_sub(1);
                *left == 0
            }
        }
    }
}

/// Returns the CPU time that this thread has used.
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
        let control = Control::default();
        control.arm(&Limits { vm_steps: Some(1_500), ..limits() }, None, Instant::now());
        assert!((0..50).all(|_| !control.must_stop()));
        control.start_executing();
        assert!(!control.must_stop());
        assert!(!control.must_stop_between_rows());
        assert!(control.must_stop());
        assert_eq!(control.disarm(), Some(Stop::VmSteps));
        assert!(!control.must_stop());
    }

    #[test]
    fn clocks_and_cancellation_stop() {
        let control = Control::default();
        control.arm(&Limits { timeout: Some(Duration::ZERO), ..limits() }, None, Instant::now());
        assert!(control.must_stop_between_rows());
        assert_eq!(control.disarm(), Some(Stop::Wall));

        control.arm(&Limits { cpu: Some(Duration::ZERO), ..limits() }, None, Instant::now());
        assert!((0..CPU_CHECK_EVERY).any(|_| control.must_stop()));
        assert_eq!(control.disarm(), Some(Stop::Cpu));

        let cancel = Arc::new(AtomicBool::new(false));
        control.arm(&limits(), Some(Arc::clone(&cancel)), Instant::now());
        assert!(!control.must_stop());
        cancel.store(true, Ordering::Relaxed);
        assert!(control.must_stop());
        assert_eq!(control.disarm(), Some(Stop::Cancelled));
    }
}
