//! Authentication of the client.

use mysql_common::auth::plugins::{AuthProc, ChallengeResponsePlugin, Context};
use mysql_common::constants::CapabilityFlags;
use mysql_common::io::ParseBuf;
use mysql_common::packets::{AuthPlugin, AuthSwitchRequest, HandshakeResponse};
use mysql_common::proto::{MyDeserialize, MySerialize};

use super::errors::ServerError;
use super::wire::{CAPABILITIES, MAX_PACKET, Wire};
use crate::server::deadline::RunDeadline;
use crate::server::stream::StreamError;
use crate::server::url::Url;

/// Authenticates with the method that the server requests.
pub(super) fn prove(
    wire: &mut Wire,
    url: &Url,
    plugin: AuthPlugin<'static>,
    nonce: Vec<u8>,
    deadline: &RunDeadline<'_>,
) -> Result<(), StreamError> {
    let is_unix = wire.is_unix();
    let password = url.password.as_deref().unwrap_or_default().as_bytes();
    let mut login = Login { password, nonce, is_unix, is_tls: wire.is_tls() };
    // The server may request another method than the one it names first.
    let mut proof = procedure(&plugin).or_else(|_| procedure(&AuthPlugin::MysqlNativePassword))?;
    let first = proof.run(&login, &login.nonce).map_err(|_| refuse_plugin(&plugin))?;
    let flags = if wire.is_tls() { CAPABILITIES | CapabilityFlags::CLIENT_SSL } else { CAPABILITIES };
    let response = HandshakeResponse::new(
        first.data(),
        (8, 0, 0),
        Some(url.user.as_bytes()),
        Some(url.database.as_bytes()),
        Some(plugin),
        flags,
        None,
        MAX_PACKET as u32,
    );
    let mut body = Vec::new();
    response.serialize(&mut body);
    wire.answer(&body)?;
    loop {
        let packet = wire.next(deadline, MAX_PACKET)?;
        if let Some(error) = ServerError::of(packet) {
            return Err(StreamError::Lost(error.text()));
        }
        let answer = match packet {
            [0, ..] => return Ok(()),
            [1, challenge @ ..] => proof.run(&login, challenge).map_err(|_| StreamError::unexpected())?,
            [0xfe, ..] => {
                let switch = AuthSwitchRequest::deserialize((), &mut ParseBuf(packet))?;
                let plugin = switch.auth_plugin().into_owned();
                login.nonce = switch.plugin_data().to_vec();
                proof = procedure(&plugin)?;
                proof.run(&login, &login.nonce).map_err(|_| refuse_plugin(&plugin))?
            }
            _ => return Err(StreamError::unexpected()),
        };
        if let Some(body) = answer.data() {
            wire.answer(body)?;
        }
    }
}

/// Starts an authentication method; refuses those that send the password in clear text.
fn procedure(plugin: &AuthPlugin<'_>) -> Result<AuthProc, StreamError> {
    match plugin {
        AuthPlugin::MysqlNativePassword | AuthPlugin::CachingSha2Password => {
            plugin.init().map_err(|_| refuse_plugin(plugin))
        }
        _ => Err(refuse_plugin(plugin)),
    }
}

/// An authentication in progress.
struct Login<'a> {
    password: &'a [u8],
    nonce: Vec<u8>,
    is_unix: bool,
    is_tls: bool,
}

impl Context for &Login<'_> {
    fn pass(&self) -> &[u8] {
        self.password
    }

    fn is_ipc_transport(&self) -> bool {
        self.is_unix
    }

    fn is_tls_transport(&self) -> bool {
        self.is_tls
    }

    fn scramble(&self) -> &[u8] {
        &self.nonce
    }

    fn server_key_pem(&self) -> Option<&[u8]> {
        None
    }
}

fn refuse_plugin(plugin: &AuthPlugin<'_>) -> StreamError {
    let name = String::from_utf8_lossy(plugin.as_bytes()).into_owned();
    StreamError::Lost(format!(
        "the server requires {name}; supported are mysql_native_password and caching_sha2_password"
    ))
}
