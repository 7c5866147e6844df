"""The statement that revokes functions from everybody when readers are set up on a server."""

from __future__ import annotations

from sqlexec_rs.servers import revoke_script

__all__ = ["revoke_script"]
