//! A session that was given up: it keeps its connection, by which the server says that it has ended.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use postgres_protocol::message::backend::Message;

use super::Postgresql;
use crate::server::given_up::Remains;
use crate::server::stream::Failure;
use crate::server::watch::Watch;

/// How long a look at a session takes that was given up.
const LOOK: Duration = Duration::from_millis(1);

/// Bytes of a row that are read and thrown away.
const MAX_REMAINS: usize = 1 << 20;

impl Remains for Postgresql {
    /// The server answers when its function has returned, or it closes the connection.
    fn has_ended(&mut self) -> bool {
        let never = AtomicBool::new(false);
        let watch = Watch::grace(LOOK, &never);
        loop {
            match self.wire.next(&watch, MAX_REMAINS) {
                Ok(Message::ReadyForQuery(_)) if self.course.times_ready == self.course.end_at => return true,
                Ok(Message::ReadyForQuery(_)) => self.course.times_ready += 1,
                Ok(_) => {}
                Err(Failure::Stopped) => return false,
                // A server that sends finds the connection closed.
                Err(Failure::TooLarge | Failure::NoMemory | Failure::Lost(_)) => return true,
            }
        }
    }
}
