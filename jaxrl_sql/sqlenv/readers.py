"""What setting up readers on a server revokes from everybody."""

from __future__ import annotations

from sqlexec_rs.servers import revoke_script

__all__ = ["revoke_script"]
