//! Ends runs that take too long. An abandoned session keeps its connection, on which the server reports its end.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;

use super::wire::Wire;
use super::{CANCEL_GRACE, DISCARD, Postgresql};
use crate::abandoned_sessions::AbandonedSession;
use crate::server::deadline::RunDeadline;
use crate::server::stream::StreamError;

/// How long the server may take to end a run by its own clock before it is cancelled.
const SERVER_GRACE: Duration = Duration::from_millis(15);

/// Maximum time for one check of an abandoned session.
const CHECK_TIMEOUT: Duration = Duration::from_millis(1);

/// Maximum bytes of a row that is read and discarded.
const MAX_REMAINS: usize = 1 << 20;

impl Postgresql {
    /// Ends the run on the server and reads its remaining messages. With `cancels_immediately` it does not first wait
    /// for the server's own time limit. If that takes too long, the session becomes unusable.
    pub(super) fn stop(&mut self, cancels_immediately: bool) {
        let never = AtomicBool::new(false);
        let is_done = (!cancels_immediately && self.drain(&RunDeadline::grace(SERVER_GRACE, &never))) || {
            let deadline = RunDeadline::grace(CANCEL_GRACE, &never);
            self.cancel(&deadline) && self.drain(&deadline)
        };
        self.is_usable &= is_done;
    }

    /// Reads the remaining messages; returns false if that takes too long, or if the run was not rolled back.
    pub(super) fn drain(&mut self, deadline: &RunDeadline<'_>) -> bool {
        let mut is_undone = self.ready_counts.end_at == self.ready_counts.rows_at;
        loop {
            let is_last = self.ready_counts.times_ready == self.ready_counts.end_at;
            match self.wire.next(deadline, usize::MAX) {
                Ok(Message::ReadyForQuery(_)) if is_last => {
                    self.ready_counts.is_over = true;
                    return is_undone;
                }
                Ok(Message::ReadyForQuery(_)) => self.ready_counts.times_ready += 1,
                // The last command discards all session state.
                Ok(Message::CommandComplete(body)) => {
                    is_undone |= is_last && body.tag().is_ok_and(|tag| tag == DISCARD);
                }
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    /// Sends a cancel request over a separate connection. Returns true if the server has accepted it, so that it
    /// cannot hit a later run.
    pub(super) fn cancel(&self, deadline: &RunDeadline<'_>) -> bool {
        let Ok(mut wire) = Wire::connect(&self.url, deadline) else { return false };
        let mut message = BytesMut::new();
        frontend::cancel_request(self.process, self.secret, &mut message);
        wire.send(&message).is_ok() && wire.is_closed_in_time(deadline)
    }
}

impl AbandonedSession for Postgresql {
    /// Returns whether the run has ended: the server is ready for the next query, or it closed the connection. A
    /// function that the query calls may ignore the cancellation for a while.
    fn has_ended(&mut self) -> bool {
        let never = AtomicBool::new(false);
        let deadline = RunDeadline::grace(CHECK_TIMEOUT, &never);
        loop {
            match self.wire.next(&deadline, MAX_REMAINS) {
                Ok(Message::ReadyForQuery(_)) if self.ready_counts.times_ready == self.ready_counts.end_at => {
                    return true;
                }
                Ok(Message::ReadyForQuery(_)) => self.ready_counts.times_ready += 1,
                Ok(_) => {}
                Err(StreamError::Stopped) => return false,
                // A server that is still sending finds the connection closed.
                Err(StreamError::TooLarge | StreamError::NoMemory | StreamError::Lost(_)) => return true,
            }
        }
    }
}
