//! Charges the work of a function to the run's bounds during the call.

use crate::sqlite::deadline::RunGuard;

/// Work between two checks of the bounds: 64 KiB of text, about 10 to 60 µs.
const CHECK_EVERY: usize = 64 << 10;

/// Work that is free per call, because the calling instruction covers it.
const FREE: usize = 1 << 10;

/// The run must stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunStopped;

/// Work of a call since the last check of the bounds, in bytes or comparisons.
pub(super) struct WorkMeter<'a> {
    guard: &'a RunGuard,
    unpaid: usize,
}

impl<'a> WorkMeter<'a> {
    pub(super) fn new(guard: &'a RunGuard) -> Self {
        Self { guard, unpaid: 0 }
    }

    /// Adds work that is about to be done.
    #[inline]
    pub(super) fn spend(&mut self, units: usize) -> Result<(), RunStopped> {
        self.unpaid += units;
        if self.unpaid >= CHECK_EVERY { self.charge() } else { Ok(()) }
    }

    /// Charges the remaining work of a long call.
    pub(super) fn finish(mut self) -> Result<(), RunStopped> {
        if self.unpaid > FREE { self.charge() } else { Ok(()) }
    }

    #[cold]
    fn charge(&mut self) -> Result<(), RunStopped> {
        let units = std::mem::take(&mut self.unpaid);
        if self.guard.charge(units as u64) { Err(RunStopped) } else { Ok(()) }
    }
}
