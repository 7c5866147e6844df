"""Functions of PostgreSQL that PUBLIC may execute and no reader needs. Setting up an own server revokes them.

PostgreSQL lets every role execute them in each database, even in a read-only transaction. They are listed by name, to
cover all signatures and versions; names that a version lacks are skipped. `servers check` reports those that a role may
still execute.
"""

from __future__ import annotations

from typing import NamedTuple


class HarmfulFunctions(NamedTuple):
    """Functions with the same harmful effect."""

    effect: str
    """The effect, as a continuation of `a reader can`."""
    names: tuple[str, ...]
    signatures: tuple[str, ...] = ()
    """Signatures, where other functions of the same name are needed."""


REVOKED = (
    HarmfulFunctions(
        "fill the disk: a rollback frees neither the log nor the pages",
        (
            "pg_logical_emit_message",
            # Large objects; refused in read-only transactions since PostgreSQL 16.
            "lo_creat", "lo_create", "lo_from_bytea", "lo_put", "lo_truncate", "lo_truncate64", "lo_unlink", "lowrite",
            "pg_export_snapshot",
            "pg_notify",
        ),
    ),
    HarmfulFunctions(
        "use up the lock table that all sessions share",
        (
            "pg_advisory_lock", "pg_advisory_lock_shared", "pg_advisory_xact_lock", "pg_advisory_xact_lock_shared",
            "pg_try_advisory_lock", "pg_try_advisory_lock_shared", "pg_try_advisory_xact_lock",
            "pg_try_advisory_xact_lock_shared",
        ),
    ),
    HarmfulFunctions(
        "end other sessions of its role",
        ("pg_cancel_backend", "pg_terminate_backend"),
    ),
    HarmfulFunctions(
        "read the queries of other sessions",
        ("pg_stat_get_activity", "pg_stat_get_backend_activity", "pg_lock_status", "pg_prepared_xact"),
    ),
    HarmfulFunctions(
        "keep a session busy after its deadline: they check neither the clock nor cancellation",
        (
            "xpath", "xpath_exists", "xmlexists",
            "normalize", "is_normalized",
            "path_distance", "path_inter", "poly_distance", "poly_overlap",
            # `.datetime()` takes quadratic time in the length of its format.
            "jsonb_path_exists", "jsonb_path_exists_opr", "jsonb_path_exists_tz", "jsonb_path_match",
            "jsonb_path_match_opr", "jsonb_path_match_tz", "jsonb_path_query", "jsonb_path_query_array",
            "jsonb_path_query_array_tz", "jsonb_path_query_first", "jsonb_path_query_first_tz", "jsonb_path_query_tz",
        ),
        # Searching and trimming bytes and bits does not check the clock; searching texts does.
        (
            "position(bytea, bytea)", "position(bit, bit)", "btrim(bytea, bytea)", "ltrim(bytea, bytea)",
            "rtrim(bytea, bytea)",
        ),
    ),
    HarmfulFunctions(
        "run statements contained in texts, which no check sees",
        (
            "query_to_xml", "query_to_xml_and_xmlschema", "query_to_xmlschema", "cursor_to_xml", "cursor_to_xmlschema",
            "ts_stat",
        ),
        ("ts_rewrite(tsquery, text)",),
    ),
)  # fmt: skip
"""The functions that `readers --harden`, and setting up an own server, revoke from PUBLIC."""

IS_EXECUTABLE = """EXISTS (
    SELECT FROM pg_catalog.pg_roles WHERE pg_catalog.pg_has_role(session_user, pg_roles.oid, 'member')
        AND pg_catalog.has_function_privilege(pg_roles.oid, pg_proc.oid, 'EXECUTE'))"""
"""SQL condition: a role that the session may assume can execute the function."""

_IS_NAMED = "pronamespace = 'pg_catalog'::regnamespace AND proname IN ({})".format(
    ", ".join(f"'{name}'" for group in REVOKED for name in group.names)
)
_HAS_SIGNATURE = "pg_proc.oid IN ({})".format(
    ", ".join(f"to_regprocedure('pg_catalog.{signature}')" for group in REVOKED for signature in group.signatures)
)


def executable_query() -> str:
    """Return a query for the names and signatures in `REVOKED` that the session's role may execute."""
    return (
        f"SELECT proname::text FROM pg_catalog.pg_proc WHERE {_IS_NAMED} AND {IS_EXECUTABLE} "
        "UNION SELECT proname || '(' || pg_catalog.oidvectortypes(proargtypes) || ')' FROM pg_catalog.pg_proc "
        f"WHERE {_HAS_SIGNATURE} AND {IS_EXECUTABLE} ORDER BY 1"
    )


def revoke_script() -> str:
    """Return a statement for a superuser that revokes the functions from PUBLIC in the session's database."""
    return _for_each_function("REVOKE", "FROM")


def grant_script() -> str:
    """Return the statement that undoes `revoke_script`."""
    return _for_each_function("GRANT", "TO")


def _for_each_function(verb: str, preposition: str) -> str:
    return f"""DO $$ DECLARE signature regprocedure; BEGIN
    FOR signature IN SELECT oid FROM pg_catalog.pg_proc WHERE {_IS_NAMED} OR {_HAS_SIGNATURE}
    LOOP EXECUTE '{verb} EXECUTE ON FUNCTION ' || signature || ' {preposition} PUBLIC'; END LOOP;
END $$;"""
