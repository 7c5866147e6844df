//! What MariaDB's and MySQL's errors mean for the one who wrote the SQL.

use mysql_common::io::ParseBuf;
use mysql_common::packets::ErrPacket;
use mysql_common::proto::MyDeserialize;

use super::CAPABILITIES;
use crate::outcome::{Outcome, Status};

/// An error as the server told it.
#[derive(Debug)]
pub(super) struct ServerError {
    pub(super) code: u16,
    state: String,
    message: String,
}

impl ServerError {
    /// Reads a packet that tells an error; `None` where it is not one.
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        if packet.first() != Some(&0xff) {
            return None;
        }
        // What is told before the client has said who it is has no SQLSTATE.
        let flags =
            if packet.get(3) == Some(&b'#') { CAPABILITIES } else { mysql_common::constants::CapabilityFlags::empty() };
        let error = ErrPacket::deserialize(flags, &mut ParseBuf(packet)).ok();
        let error = error.as_ref().filter(|error| error.is_error()).map(ErrPacket::server_error);
        Some(error.map_or_else(
            || Self {
                code: 0,
                state: String::new(),
                message: "the server told an error that cannot be read".to_owned(),
            },
            |error| Self {
                code: error.error_code(),
                state: error.sql_state_ref().map(|state| state.as_str().into_owned()).unwrap_or_default(),
                message: error.message_str().into_owned(),
            },
        ))
    }

    /// Tells whether the server closes the connection.
    pub(super) fn is_fatal(&self) -> bool {
        // Shut down, killed, cannot be read or written, forced to close, time out of a session.
        matches!(self.code, 1053 | 1077..=1080 | 1152 | 1158..=1161 | 1184 | 1927 | 4031)
    }

    /// Tells whether the server ended the statement because of its time, or of somebody's wish.
    pub(super) fn is_cancellation(&self) -> bool {
        matches!(self.code, 1317 | 1969 | 3024)
    }

    /// Returns the message in one line.
    pub(super) fn text(&self) -> String {
        self.message.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Returns the outcome for a SQL text.
    pub(super) fn outcome(&self, sql: &str) -> Outcome {
        let error_offset = if self.code == 1064 { self.place(sql) } else { None };
        Outcome { error_offset, ..Outcome::failed(self.status(), self.text()) }
    }

    /// Returns where the text begins that a message about the grammar cites, where there is one such place.
    fn place(&self, sql: &str) -> Option<u32> {
        let (_, rest) = self.message.split_once(" near '")?;
        let (near, _) = rest.rsplit_once("' at line ")?;
        if near.is_empty() {
            return Some(sql.len() as u32);
        }
        let mut places = sql.match_indices(near).map(|(at, _)| at as u32);
        let place = places.next();
        if places.next().is_some() { None } else { place }
    }

    fn status(&self) -> Status {
        match self.code {
            1290 if self.message.contains("max-session-mem-used") => Status::TooLarge,
            // The grammar; no query; another number of columns in a union, a row or a subquery; no alias.
            1064 | 1065 | 1149 | 1222 | 1241 | 1248 => Status::SyntaxError,
            // Privileges of databases, users, tables, columns, routines and files; a transaction that only reads; locks.
            1044 | 1045 | 1142 | 1143 | 1227 | 1290 | 1792 | 1223 | 1099 | 1100 | 1295 => Status::Forbidden,
            // Memory, the stack, files, packets, a table on disk, columns, tables of a join, depth of what is nested.
            1037 | 1038 | 1041 | 1114 | 1116 | 1117 | 1119 | 1153 | 1301 | 1436 | 1461 | 4004 | 4005 => {
                Status::TooLarge
            }
            1205 => Status::Timeout,
            1021 | 1023..=1031 | 1033..=1036 | 1040 | 1043 | 1053 | 1130 | 1203 | 1226 | 1927 => Status::DbError,
            _ if self.state.starts_with("42") => Status::SchemaError,
            // A function that is not there is one that may not be run: the server does not tell which.
            1051 | 1052 | 1054 | 1146 | 1193 | 1305 | 1370 => Status::SchemaError,
            _ => Status::RuntimeError,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16, state: &str, message: &str) -> ServerError {
        ServerError { code, state: state.to_owned(), message: message.to_owned() }
    }

    #[test]
    fn a_code_says_the_status() {
        let cases = [
            (1064, "42000", Status::SyntaxError),
            (1146, "42S02", Status::SchemaError),
            (1054, "42S22", Status::SchemaError),
            (1193, "HY000", Status::SchemaError),
            (1142, "42000", Status::Forbidden),
            (1792, "25006", Status::Forbidden),
            (1365, "22012", Status::RuntimeError),
            (1690, "22003", Status::RuntimeError),
            (1114, "HY000", Status::TooLarge),
            (1040, "08004", Status::DbError),
        ];
        for (code, state, expected) in cases {
            assert_eq!(error(code, state, "so\n it is").outcome("").status, expected, "{code}");
        }
        assert_eq!(error(1054, "42S22", "so\n it is").outcome("").error.as_deref(), Some("so it is"));
    }

    #[test]
    fn a_place_is_the_one_that_the_server_cites() {
        let place =
            |near: &str, sql| error(1064, "42000", &format!("so near '{near}' at line 1")).outcome(sql).error_offset;
        assert_eq!(place("FROM", "SELECT é, FROM"), Some(11));
        assert_eq!(place("a", "a a"), None);
        assert_eq!(place("", "SELECT"), Some(6));
    }

    #[test]
    fn a_packet_is_read_before_and_after_the_login() {
        let read = |packet: &[u8]| ServerError::of(packet).map(|error| (error.code, error.state, error.message));
        let expected = (1040, String::new(), "Too many".to_owned());
        assert_eq!(read(b"\xff\x10\x04Too many"), Some(expected));
        assert_eq!(read(b"\xff\x28\x04#42000near"), Some((1064, "42000".to_owned(), "near".to_owned())));
        assert_eq!(read(b"\x00"), None);
        assert_eq!(read(b"\xff").map(|error| error.0), Some(0));
    }
}
