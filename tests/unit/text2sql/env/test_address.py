"""Addresses of databases: refusals, roles, and the verification of servers."""

from __future__ import annotations

import pytest

from jaxrl_sql.text2sql.env.address import Address, parse_address, users_of
from jaxrl_sql.types import InputError


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("oracle://a:s3cret@h/x", "not the URL of a database"),
        ("sqlite.db", "not the URL of a database"),
        ("postgresql://u:s3cret", "give postgresql://"),
        ("postgresql://u:s3cret@h:99999/x", "its port must be a number"),
        ("postgresql://u:s3:cr/et@h/x", "give postgresql://"),
        ("postgresql://:s3cret@h/x", "no user"),
        ("mysql://u:s3cret@h/x?speed=1", 'unknown option "speed"'),
        ("mysql://u:s3cret@h/x?sslmod=verify-full", r'unknown option "sslmod"; .* Did you mean sslmode\?'),
        ("mysql://u:s3cret@h/x?sslmode=verify-full&sslmode=disable", "the option sslmode twice"),
        ("mysql://u:s3cret@h/x?sslmode=verify-full#a", "no part after #"),
        ("mysql://u:s3cret@h/x?roles=0", "roles=0: it must be a number from 1 to 1024"),
        ("mysql://u:s3cret@h/x?roles=two", "roles=two: it must be a number"),
        ("duckdb:", "give duckdb:FOLDER"),
        ("duckdb://s3cret@h", "give duckdb:FOLDER"),
    ],
)
def test_invalid_address_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        parse_address(url)
    assert "s3cret" not in str(refused.value)


def test_url_round_trips() -> None:
    address = parse_address("mariadb://a%40b:p%2Fw@[::1]:3307/x?sslmode=disable")
    assert (address.engine, address.user, address.password, address.host) == ("mysql", "a@b", "p/w", "::1")
    assert parse_address(address.url("ä/b")) == address.with_database("ä/b")
    assert "p/w" not in repr(address) + address.shown + address.display_name("x")


def test_url_of_several_roles_names_each() -> None:
    address = parse_address("postgresql://reader:s@h/x?roles=3&sslmode=disable")
    assert address.users == users_of(address.url("x")) == ("reader_1", "reader_2", "reader_3")
    assert address.public_url("y") == "postgresql://reader@h:5432/y?roles=3&sslmode=disable"
    assert address.single == parse_address("postgresql://reader_1:s@h/x?sslmode=disable")
    assert (users_of("reader"), users_of("")) == (("reader",), ())


@pytest.mark.parametrize(
    ("url", "mode", "is_secured"),
    [
        ("127.0.0.1/x", "prefer", False),
        ("db.example/x", "verify-full", True),
        ("db.example/x?sslmode=disable", "disable", False),
    ],
)
def test_remote_server_must_prove_its_identity(url: str, mode: str, is_secured: bool) -> None:
    address = parse_address(f"postgresql://u:p@{url}")
    assert address.tls_settings()["sslmode"] == mode
    assert ("sslrootcert" in address.tls_settings()) == is_secured
    context = address.tls_context()
    assert (context is not None) == is_secured
    assert context is None or context.check_hostname


@pytest.mark.parametrize(
    ("password", "message", "redacted"),
    [
        (
            "w",
            "the role writer: w@h, //u:w@h/d, password=w port=1",
            "the role writer: w@h, //u:***@h/d, password=*** port=1",
        ),
        ("library", 'ON DATABASE "library" //u:library@h/library', 'ON DATABASE "library" //u:***@h/library'),
        ("a/b", "//u:a%2Fb@h PASSWORD 'a/b'", "//u:***@h PASSWORD '***'"),
        ("Xk93-qT7zL", "the server repeats Xk93-qT7zL", "the server repeats ***"),
    ],
)
def test_common_passwords_are_masked_only_as_passwords(password: str, message: str, redacted: str) -> None:
    address = Address("postgresql", "h", 5432, "u", password, "library")
    assert address.redact(message) == redacted
