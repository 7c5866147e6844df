//! The URL of a database: `scheme://user:password@host:port/database?name=value`, with percent-encoded parts.
//!
//! A host that starts with a slash (`%2Frun%2Fpostgresql`) is the folder of a socket. URLs in messages and callbacks
//! never show the password.
//!
//! `?roles=16` means that `USER_1` to `USER_16` exist with the same password. Sessions of one role can end and read
//! each other, so the last role runs gold queries, and each thread runs other texts as one of the others.
//!
//! Options that are not in [`OPTIONS`] are refused: a misspelt `sslmode` would otherwise silently weaken the
//! connection.

use std::fmt;
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_decode_str, utf8_percent_encode};
use strsim::osa_distance;

use crate::target::Engine;

/// Maximum value of the `roles` option.
const MAX_ROLES: usize = 1024;

/// The known URL options.
const OPTIONS: [&str; 4] = ["allow", "roles", "sslmode", "sslrootcert"];

/// Maximum edit distance between an unknown option and the suggested one.
const MAX_EDITS: usize = 3;

/// Characters that are not encoded in a URL part, as in Python's `quote`.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Characters that are not encoded in an option, which may be a path.
const PLAIN_IN_OPTION: &AsciiSet = &PLAIN.remove(b'/');

/// The address of a database, with the login.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// The name of the engine or an alias.
    pub scheme: String,
    /// The user name.
    pub user: String,
    /// The user's password, omitted by `Debug` and `Display`.
    pub password: Option<String>,
    /// The host in lower case, or the folder of a socket.
    pub host: String,
    /// The port; `None` for the engine's default.
    pub port: Option<u16>,
    /// The database; empty if the URL has none.
    pub database: String,
    /// Names and values of the options.
    pub options: Vec<(String, String)>,
}

impl Url {
    /// Parses the URL of a database; returns the error message on failure.
    pub(crate) fn parse(name: &Path) -> Result<Self, String> {
        let url = Self::split(name.to_str().ok_or("a URL must be UTF-8")?)?;
        if url.database.is_empty() {
            return Err("the URL has no database".to_owned());
        }
        Ok(url)
    }

    /// Parses the URL of a server, which may lack a database. The error message does not show the password.
    pub fn split(text: &str) -> Result<Self, String> {
        if !Engine::of(Path::new(text)).is_ok_and(Engine::is_server) {
            return Err("not the URL of a database server".to_owned());
        }
        let (scheme, rest) = text.split_once("://").ok_or("a URL has `://` after its scheme")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, address) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match credentials.split_once(':') {
            Some((user, password)) => (user, Some(decoded(password)?)),
            None => (credentials, None),
        };
        let (host, port) = split_port(address)?;
        let host = decoded(host)?;
        let url = Self {
            scheme: scheme.to_owned(),
            user: decoded(user)?,
            password,
            host: if host.starts_with('/') { host } else { host.to_lowercase() },
            port,
            database: decoded(database)?,
            options: query.split('&').filter(|pair| !pair.is_empty()).map(option).collect::<Result<_, _>>()?,
        };
        for (part, missing) in [(&url.host, "host"), (&url.user, "user: SCHEME://USER@…")] {
            if part.is_empty() {
                return Err(format!("the URL has no {missing}"));
            }
        }
        if [&url.user, &url.host, &url.database].iter().any(|part| part.contains('\0')) {
            return Err("a part of the URL holds a NUL".to_owned());
        }
        url.check_options()?;
        Ok(url)
    }

    /// Writes the URL with its password, so that `split` returns the same parts.
    pub fn to_text(&self) -> String {
        let Self { scheme, user, host, database, .. } = self;
        let password =
            self.password.as_ref().map(|password| format!(":{}", percent_encode(password))).unwrap_or_default();
        let host = if host.contains(':') { format!("[{host}]") } else { percent_encode(host).to_string() };
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        let option = |(name, value): &(String, String)| {
            format!("{}={}", percent_encode(name), utf8_percent_encode(value, PLAIN_IN_OPTION))
        };
        let options = self.options.iter().map(option).collect::<Vec<_>>().join("&");
        let mark = if options.is_empty() { "" } else { "?" };
        format!(
            "{scheme}://{}{password}@{host}{port}/{}{mark}{options}",
            percent_encode(user),
            percent_encode(database)
        )
    }

    /// Returns the URL with the role of a pool thread, for gold queries or for other texts.
    pub(crate) fn of_thread(mut self, number: usize, is_gold: bool) -> Result<Self, String> {
        if let Some(n) = self.n_roles()? {
            let role = if is_gold { n } else { number % (n - 1).max(1) + 1 };
            self.user = format!("{}_{role}", self.user);
        }
        Ok(self)
    }

    /// Returns the number of roles, if the URL has that option.
    pub fn n_roles(&self) -> Result<Option<usize>, String> {
        let Some(roles) = self.option("roles") else { return Ok(None) };
        let n = roles.parse().ok().filter(|n| (1..=MAX_ROLES).contains(n));
        n.map(Some).ok_or_else(|| format!("roles={roles}: it must be a number from 1 to {MAX_ROLES}"))
    }

    /// Returns whether gold queries have a separate role.
    pub(crate) fn has_role_of_golds(&self) -> bool {
        self.n_roles().is_ok_and(|n| n.is_some_and(|n| n > 1))
    }

    /// Returns the canonical scheme of the engine.
    pub fn engine(&self) -> &'static str {
        if self.scheme.starts_with("postgres") { "postgresql" } else { "mysql" }
    }

    /// Returns the port, by default that of the engine.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(if self.engine() == "postgresql" { 5432 } else { 3306 })
    }

    /// Returns the server's address, in one spelling per server.
    pub(crate) fn server(&self) -> String {
        format!("{}:{}", self.host, self.port())
    }

    /// Refuses unknown and repeated options.
    fn check_options(&self) -> Result<(), String> {
        for (index, (name, _)) in self.options.iter().enumerate() {
            if !OPTIONS.contains(&name.as_str()) {
                return Err(unknown_option(name));
            }
            if self.options[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(format!("the URL has the option {name} twice"));
            }
        }
        Ok(())
    }

    /// Returns the value of an option.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Shows everything except the password and the options, which may contain one.
impl fmt::Display for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, user, host, database, .. } = self;
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        write!(out, "{scheme}://{user}@{host}{port}/{database}")
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// Returns the name of a database for display. A URL that cannot be parsed is cut after its scheme.
pub(crate) fn shown(name: &Path) -> String {
    Url::parse(name).map_or_else(
        |_| format!("{}://…", name.to_string_lossy().split("://").next().unwrap_or_default()),
        |url| url.to_string(),
    )
}

/// Returns the message for an unknown option, with the nearest known one.
fn unknown_option(name: &str) -> String {
    let lower = name.to_lowercase();
    let nearest = OPTIONS.iter().map(|known| (osa_distance(&lower, known), *known)).min();
    let hint = nearest.filter(|(edits, _)| *edits <= MAX_EDITS).map(|(_, known)| format!(" Did you mean {known}?"));
    format!("the URL has an unknown option {name:?}; known: {}.{}", OPTIONS.join(", "), hint.unwrap_or_default())
}

fn option(pair: &str) -> Result<(String, String), String> {
    let (name, value) = pair.split_once('=').ok_or("an option of the URL lacks name=value")?;
    Ok((decoded(name)?, decoded(value)?))
}

/// Splits off the port. An address in brackets contains other colons.
fn split_port(address: &str) -> Result<(&str, Option<u16>), String> {
    let (host, port) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, ""),
        Some((host, rest)) => (host, rest.strip_prefix(':').ok_or("its host is malformed: only :PORT may follow ]")?),
        None => {
            let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
            if host.contains([':', '[', ']']) {
                return Err("its host is malformed: put an IPv6 address in brackets, as in [::1]:5432".to_owned());
            }
            (host, port)
        }
    };
    if port.is_empty() {
        return Ok((host, None));
    }
    let number = port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()));
    Ok((host, Some(number.ok_or("its port must be a number up to 65535: %-encode :, /, ? and @ in a password")?)))
}

fn percent_encode(part: &str) -> PercentEncode<'_> {
    utf8_percent_encode(part, PLAIN)
}

fn decoded(part: &str) -> Result<String, String> {
    let decoded = percent_decode_str(part).decode_utf8();
    decoded.map(std::borrow::Cow::into_owned).map_err(|_| "a part of the URL is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Url, String> {
        Url::parse(Path::new(text))
    }

    #[test]
    fn url_is_parsed() {
        let url =
            parse("postgresql://ann:s%40fe:%2F@db.example:6432/my%20shop?sslmode=disable&sslrootcert=b%26c").unwrap();
        assert_eq!((url.user.as_str(), url.password.as_deref()), ("ann", Some("s@fe:/")));
        assert_eq!((url.host.as_str(), url.port, url.database.as_str()), ("db.example", Some(6432), "my shop"));
        let options = (url.option("sslmode"), url.option("sslrootcert"), url.option("roles"));
        assert_eq!(options, (Some("disable"), Some("b&c"), None));
        let url = parse("postgresql://ann@[::1]:5/d").unwrap();
        assert_eq!((url.host.as_str(), url.port, url.password), ("::1", Some(5), None));
        let url = parse("postgres://ann@%2Frun%2Fpg/d").unwrap();
        assert_eq!((url.host.as_str(), url.port), ("/run/pg", None));
    }

    #[test]
    fn malformed_host_or_port_is_refused() {
        for host in ["::1", "[::1", "fe80::1:5432", "[::1]5432", "h]", "h:+5", "h: 5", "h:65536"] {
            assert!(
                parse(&format!("mysql://ann:secret@{host}/d")).is_err_and(|error| !error.contains("secret")),
                "{host}"
            );
        }
    }

    #[test]
    fn url_round_trips_through_text() {
        for (text, written) in [
            (
                "postgres://ann:s%40fe:%2F@DB.example/a%2Fb?sslrootcert=/c&roles=2",
                "s%40fe%3A%2F@db.example/a%2Fb?sslrootcert=/c&roles=2",
            ),
            ("mariadb://ann@[::1]:5", "mariadb://ann@[::1]:5/"),
            ("mysql://a%3Ab@%2FRun%2Fpg/d", "mysql://a%3Ab@%2FRun%2Fpg/d"),
        ] {
            let url = Url::split(text).unwrap();
            assert!(url.to_text().contains(written), "{}", url.to_text());
            assert_eq!(Url::split(&url.to_text()), Ok(url));
        }
        assert!(["shop.sqlite", "oracle://a@h", "duckdb:a"].iter().all(|text| Url::split(text).is_err()));
    }

    #[test]
    fn threads_and_golds_have_separate_roles() {
        let user = |text: &str, number| parse(text).unwrap().of_thread(number, false).map(|url| url.user);
        let gold = |text: &str, number| parse(text).unwrap().of_thread(number, true).map(|url| url.user);
        let users: Vec<_> = (0..4).map(|number| user("postgresql://ann@h/d?roles=4", number).unwrap()).collect();
        assert_eq!(users, ["ann_1", "ann_2", "ann_3", "ann_1"]);
        let golds: Vec<_> = (0..4).map(|number| gold("postgresql://ann@h/d?roles=4", number).unwrap()).collect();
        assert_eq!(golds, ["ann_4"; 4]);
        assert_eq!(["1", "2"].map(|n| user(&format!("mysql://a@h/d?roles={n}"), 5).unwrap()), ["a_1", "a_1"]);
        assert_eq!(["1", "2"].map(|n| gold(&format!("mysql://a@h/d?roles={n}"), 5).unwrap()), ["a_1", "a_2"]);
        assert_eq!(
            ["?roles=2", "?roles=1", ""]
                .map(|options| { parse(&format!("mysql://a@h/d{options}")).unwrap().has_role_of_golds() }),
            [true, false, false]
        );
        for (roles, is_own) in [("01", false), ("+1", false), ("02", true)] {
            let url = parse(&format!("mysql://a@h/d?roles={roles}")).unwrap();
            assert_eq!(url.has_role_of_golds(), is_own, "{roles}");
        }
        assert_eq!(user("mysql://ann@h/d?sslmode=disable", 7).unwrap(), "ann");
        for wrong in ["0", "-1", "1025", "many", ""] {
            let error = user(&format!("mysql://ann:secret@h/d?roles={wrong}"), 0).unwrap_err();
            assert_eq!(error, format!("roles={wrong}: it must be a number from 1 to 1024"));
        }
    }

    #[test]
    fn server_has_one_address_per_engine_and_port() {
        let server = |text: &str| parse(text).unwrap().server();
        for (url, other) in [
            ("mysql://u@h/d", "mariadb://v:secret@h:3306/e?roles=2"),
            ("postgresql://u@h/d", "postgres://v@h:5432/e"),
            ("postgresql://u@%2Frun/d", "postgresql://u@%2Frun:5432/d"),
        ] {
            assert_eq!(server(url), server(other));
        }
        assert_ne!(server("mysql://u@h/d"), server("postgresql://u@h/d"));
        assert_ne!(server("mysql://u@h:1/d"), server("mysql://u@h:2/d"));
    }

    #[test]
    fn unknown_and_repeated_options_are_refused() {
        let error = |options: &str| parse(&format!("mysql://ann:secret@h/d?{options}")).unwrap_err();
        let known = "known: allow, roles, sslmode, sslrootcert.";
        for (options, expected) in [
            ("sslmod=verify-full", format!("\"sslmod\"; {known} Did you mean sslmode?")),
            ("SSLMODE=verify-full", format!("\"SSLMODE\"; {known} Did you mean sslmode?")),
            ("sslmode=disable&ssl_root_cert=x", format!("\"ssl_root_cert\"; {known} Did you mean sslrootcert?")),
            ("role=3", format!("\"role\"; {known} Did you mean roles?")),
            ("connect_timeout=5", format!("\"connect_timeout\"; {known}")),
            ("%73slmod=x", format!("\"sslmod\"; {known} Did you mean sslmode?")),
            ("=x", format!("\"\"; {known}")),
        ] {
            assert_eq!(error(options), format!("the URL has an unknown option {expected}"), "{options}");
        }
        assert_eq!(error("sslmode=verify-full&sslmode=disable"), "the URL has the option sslmode twice");
    }

    #[test]
    fn password_is_never_shown() {
        for text in [
            "postgresql://ann:secret@h:5/d?password=secret",
            "postgresql://ann:secret@h:port/d",
            "postgresql://:secret@/",
        ] {
            let name = Path::new(text);
            let all = format!("{} {:?}", shown(name), Url::parse(name));
            assert!(!all.contains("secret"), "{all}");
        }
        assert_eq!(shown(Path::new("postgresql://ann:secret@h:5/d")), "postgresql://ann@h:5/d");
    }

    #[test]
    fn errors_name_the_malformed_part() {
        let wrong = [
            "postgresql://h/d",
            "postgresql://u@/d",
            "postgresql://u@h",
            "postgresql://u@h:70000/d",
            "postgresql://u@h/d?x",
            "postgresql://u%ff@h/d",
            "postgresql://u@h/d%00",
        ];
        assert!(wrong.iter().all(|text| parse(text).is_err()), "{:?}", wrong.map(parse));
    }
}
