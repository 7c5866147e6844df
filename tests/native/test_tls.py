"""Sessions with servers over TLS: encryption, and verification of the server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from sqlexec_rs import Executor, Limits
from sqlexec_rs.servers import Server

ENCRYPTED = {
    "postgresql": ("SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()", "TLSv1.3"),
    "mariadb": (
        "SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'SSL_VERSION'",
        "TLSv1.3",
    ),
}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module", params=ENCRYPTED)
def server(
    request: pytest.FixtureRequest, authority: trustme.CA, start_server: Callable[[str, str], Server]
) -> Iterator[Server]:
    """Return a server known as localhost and by its address, with a certificate of the authority."""
    server = start_server(request.param, "SELECT 1;")
    folder = Path(server.folder)
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    key, chain = folder / "server.key", folder / "server.pem"
    certificate.private_key_pem.write_to_path(key)
    certificate.cert_chain_pems[0].write_to_path(chain)
    for file in (key, chain):
        file.chmod(0o600)
        os.chown(file, folder.stat().st_uid, folder.stat().st_gid)
    if request.param == "postgresql":
        server.run("GRANT EXECUTE ON FUNCTION pg_stat_get_activity TO reader")  # pg_stat_ssl calls it
        server.restart("-c ssl=on", f"-c ssl_key_file={key}", f"-c ssl_cert_file={chain}")
    else:
        server.restart(f"--ssl-key={key}", f"--ssl-cert={chain}")
    with Executor(threads=1) as executor:
        end = time.monotonic() + 60
        while executor.execute(server.reader, "SELECT 1").status != "ok" and time.monotonic() < end:
            time.sleep(0.1)
    yield server
    server.restart()


def test_a_session_is_encrypted_and_the_server_verified(server: Server, authority: trustme.CA, tmp_path: Path) -> None:
    known, other = tmp_path / "known.pem", tmp_path / "other.pem"
    authority.cert_pem.write_to_path(known)
    trustme.CA().cert_pem.write_to_path(other)
    sql, version = ENCRYPTED[server.engine]
    with Executor(threads=1) as executor:
        for url in [
            f"{server.reader}?sslrootcert={known}",
            f"{server.reader}?sslmode=verify-full&sslrootcert={known}",
            f"{server.reader.replace('127.0.0.1', 'localhost')}?sslrootcert={known}",
        ]:
            outcome = executor.execute(url, sql)
            assert (outcome.error, outcome.rows) == (None, [(version,)])
            many = executor.execute_many([(url, f"SELECT {i}, '{'x' * 2_000}'") for i in range(200)])
            assert [outcome.rows[0][0] for outcome in many] == list(range(200))
        refused = {
            f"{server.reader}?sslrootcert={other}": "invalid peer certificate",
            f"{server.reader}?sslrootcert={tmp_path / 'nothing.pem'}": "nothing.pem",
            f"{server.reader}?sslmode=maybe": "it must be verify-full or disable",
        }
        for url, why in refused.items():
            outcome = executor.execute(url, "SELECT 1")
            assert outcome.status == "db_error"
            assert why in (outcome.error or "")
        assert executor.execute(f"{server.reader}?sslmode=disable", "SELECT 1").rows == [(1,)]


def test_a_slow_query_over_tls_times_out(server: Server, authority: trustme.CA, tmp_path: Path) -> None:
    known = tmp_path / "known.pem"
    authority.cert_pem.write_to_path(known)
    sleep = "pg_sleep(60)" if server.engine == "postgresql" else "SLEEP(60)"
    with Executor(threads=1) as executor:
        url = f"{server.reader}?sslrootcert={known}"
        assert executor.execute(url, f"SELECT {sleep}", limits=Limits(timeout_ms=100)).status == "timeout"
        job = executor.submit([(url, f"SELECT {sleep}")])
        while executor.stats()["queued"]:
            time.sleep(0.001)
        job.cancel()
        assert job.result()[0].status == "cancelled"
        assert executor.execute(url, "SELECT 1").rows == [(1,)]


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_a_query_that_ends_the_server_over_tls_is_a_crash(
    server: Server, authority: trustme.CA, tmp_path: Path
) -> None:
    known = tmp_path / "known.pem"
    authority.cert_pem.write_to_path(known)
    killer = "SELECT UPDATEXML('<a/>', CONCAT(REPEAT('-', 100000), '1'), '')"
    with Executor(threads=2) as executor:
        url = f"{server.reader}?sslrootcert={known}&allow=xml"
        outcomes = executor.execute_many([(url, killer), *((url, f"SELECT {i}") for i in range(20))])
        assert outcomes[0].status == "crashed", outcomes[0]
        assert [outcome.rows for outcome in outcomes[1:]] == [[(i,)] for i in range(20)]
