//! Maps errors of MariaDB and MySQL to statuses.

use mysql_common::io::ParseBuf;
use mysql_common::packets::ErrPacket;
use mysql_common::proto::MyDeserialize;

use super::wire::CAPABILITIES;
use crate::outcome::{Outcome, Status};

/// An error message of the server.
#[derive(Debug)]
pub(super) struct ServerError {
    pub(super) code: u16,
    state: String,
    message: String,
}

impl ServerError {
    /// Parses an error packet; `None` for any other packet.
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        if packet.first() != Some(&0xff) {
            return None;
        }
        // Errors before the login carry no SQLSTATE.
        let flags =
            if packet.get(3) == Some(&b'#') { CAPABILITIES } else { mysql_common::constants::CapabilityFlags::empty() };
        let error = ErrPacket::deserialize(flags, &mut ParseBuf(packet)).ok();
        let error = error.as_ref().filter(|error| error.is_error()).map(ErrPacket::server_error);
        Some(error.map_or_else(
            || Self { code: 0, state: String::new(), message: "the server sent a malformed error message".to_owned() },
            |error| Self {
                code: error.error_code(),
                state: error.sql_state_ref().map(|state| state.as_str().into_owned()).unwrap_or_default(),
                message: error.message_str().into_owned(),
            },
        ))
    }

    /// Returns whether the server closes the connection.
    pub(super) fn is_fatal(&self) -> bool {
        // Shutdown, kill, read or write errors, forced close, session timeout.
        matches!(self.code, 1053 | 1077..=1080 | 1152 | 1158..=1161 | 1184 | 1927 | 4031)
    }

    /// Returns whether the server ended the statement because of its time limit or a request.
    pub(super) fn is_cancellation(&self) -> bool {
        matches!(self.code, 1317 | 1969 | 3024)
    }

    /// Returns the message on one line.
    pub(super) fn text(&self) -> String {
        self.message.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Returns the outcome for a SQL text.
    pub(super) fn outcome(&self, sql: &str) -> Outcome {
        let error_offset = if self.code == 1064 { self.cited_offset(sql) } else { None };
        Outcome { error_offset, ..Outcome::failed(self.status(), self.text()) }
    }

    /// Returns the offset of the text that a syntax error cites, if it occurs exactly once.
    fn cited_offset(&self, sql: &str) -> Option<u32> {
        let (_, rest) = self.message.split_once(" near '")?;
        let (near, _) = rest.rsplit_once("' at line ")?;
        if near.is_empty() {
            return Some(sql.len() as u32);
        }
        let mut offsets = sql.match_indices(near).map(|(at, _)| at as u32);
        let cited_offset = offsets.next();
        if offsets.next().is_some() { None } else { cited_offset }
    }

    fn status(&self) -> Status {
        match self.code {
            1290 if self.message.contains("max-session-mem-used") => Status::TooLarge,
            // Syntax; no query; `*` without tables; conflicting clauses; different numbers of columns in a union, a
            // row, a WITH list or a subquery; missing alias.
            1064 | 1065 | 1096 | 1149 | 1221 | 1222 | 1241 | 1248 | 4002 | 4099 | 4107 => Status::SyntaxError,
            // Privileges on databases, users, tables, columns, routines and files; other sessions; read-only
            // transactions; locks; features that the server lacks or has disabled.
            1044 | 1045 | 1095 | 1099 | 1100 | 1142 | 1143 | 1223 | 1227 | 1235 | 1289 | 1290 | 1295 | 1698 | 1792 => {
                Status::Forbidden
            }
            // Memory, stack, files, packets, tables on disk, rows of a join, columns and their lengths, tables of a
            // join, parameters, expressions, nesting depth.
            1037
            | 1038
            | 1041
            | 1074
            | 1104
            | 1114
            | 1116..=1119
            | 1153
            | 1301
            | 1390
            | 1436
            | 1456
            | 1461
            | 1473
            | 4003
            | 4026 => Status::TooLarge,
            // Files, connections, locks and changes by others, damaged tables, another server, server faults.
            1004
            | 1005
            | 1009..=1021
            | 1023..=1036
            | 1039
            | 1040
            | 1042
            | 1043
            | 1053
            | 1130
            | 1135
            | 1194
            | 1195
            | 1203
            | 1205
            | 1206
            | 1213
            | 1226
            | 1296
            | 1297
            | 1412
            | 1429
            | 1430
            | 1615
            | 1637
            | 1712
            | 1815
            | 1877
            | 1878
            | 1927
            | 1932 => Status::DbError,
            // A function that is unknown or that the user may not execute: the server has one error for both. Then
            // aggregates, full-text indexes, variables, collations, broken views, lists of WITH and WINDOW, types and
            // operators.
            1051
            | 1052
            | 1054
            | 1111
            | 1146
            | 1191
            | 1193
            | 1238
            | 1267
            | 1270
            | 1271
            | 1273
            | 1305
            | 1347
            | 1356
            | 1370
            | 4004..=4018
            | 4078
            | 4079
            | 4161
            | 4162 => Status::SchemaError,
            _ => self.status_of_state(),
        }
    }

    /// Returns the status of a SQLSTATE class, for codes without an entry.
    fn status_of_state(&self) -> Status {
        match self.state.as_bytes() {
            [b'4', b'2', ..] | [b'3', b'D', ..] => Status::SchemaError,
            [b'0', b'A', ..] | [b'2', b'5' | b'8', ..] => Status::Forbidden,
            [b'0', b'8', ..] | [b'4', b'0', ..] => Status::DbError,
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
    fn codes_map_to_statuses() {
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
            (1104, "42000", Status::TooLarge),
            (1118, "42000", Status::TooLarge),
            (1235, "42000", Status::Forbidden),
            (1289, "HY000", Status::Forbidden),
            (1415, "0A000", Status::Forbidden),
            (1568, "25001", Status::Forbidden),
            (1096, "HY000", Status::SyntaxError),
            (1046, "3D000", Status::SchemaError),
            (1111, "HY000", Status::SchemaError),
            (4003, "HY000", Status::TooLarge),
            (4004, "HY000", Status::SchemaError),
            (4005, "HY000", Status::SchemaError),
            (1194, "HY000", Status::DbError),
            (1205, "HY000", Status::DbError),
            (1213, "40001", Status::DbError),
            (1242, "21000", Status::RuntimeError),
        ];
        for (code, state, expected) in cases {
            assert_eq!(error(code, state, "so\n it is").outcome("").status, expected, "{code}");
        }
        assert_eq!(error(1054, "42S22", "so\n it is").outcome("").error.as_deref(), Some("so it is"));
    }

    #[test]
    fn error_offset_is_at_the_cited_text() {
        let cited_offset =
            |near: &str, sql| error(1064, "42000", &format!("so near '{near}' at line 1")).outcome(sql).error_offset;
        assert_eq!(cited_offset("FROM", "SELECT é, FROM"), Some(11));
        assert_eq!(cited_offset("a", "a a"), None);
        assert_eq!(cited_offset("", "SELECT"), Some(6));
    }

    #[test]
    fn packets_are_parsed_before_and_after_the_login() {
        let read = |packet: &[u8]| ServerError::of(packet).map(|error| (error.code, error.state, error.message));
        let expected = (1040, String::new(), "Too many".to_owned());
        assert_eq!(read(b"\xff\x10\x04Too many"), Some(expected));
        assert_eq!(read(b"\xff\x28\x04#42000near"), Some((1064, "42000".to_owned(), "near".to_owned())));
        assert_eq!(read(b"\x00"), None);
        assert_eq!(read(b"\xff").map(|error| error.0), Some(0));
    }
}
