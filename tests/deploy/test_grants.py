from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributary.config.load import load_text
from distributary.deploy.grants import (
    GrantResult,
    GrantStatement,
    Right,
    RightsBook,
    SparkExecutor,
    Standing,
    StatementOutcome,
    Verb,
    apply_rights,
    statements,
    wanted_rights,
)
from distributary.errors import ConfigError, DeployError, DeployUnavailableError, DistributaryError
from distributary.observe.ledger.ledger import Ledger
from tests.lakes.written import make_lake

FILE = """\
name: games
source: {type: kafka, bootstrap_servers: "127.0.0.1:9092", topics: [wrapper]}
payload: {format: json}
tables: {each: "silver_{topic}"}
lake: {path: ./lake, database: games}
"""
CHESS = Right(("games", "silver_0"), "analysts", "SELECT")
GO = Right(("games", "silver_1"), "analysts", "SELECT")


def wanted(grants: str, *, tables: tuple[Any, ...], extra: str = "") -> list[Right]:
    config = load_text(f"{FILE}grants: {grants}\n{extra}", environ={}).config
    return sorted(wanted_rights(config, tables))


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Any, ...]:
    lake = make_lake(tmp_path / "lake", types=("chess", "go", '["shop","","orders"]'))
    return Ledger(str(lake)).tables("games")


@pytest.mark.parametrize(
    ("grants", "names"),
    [
        ("[{principals: [a], tables: [silver_0]}]", ["silver_0"]),
        ("[{principals: [a], tables: ['silver_*']}]", ["silver_0", "silver_1", "silver_2"]),
        ("[{principals: [a], types: [chess]}]", ["silver_0"]),
        ("[{principals: [a], types: ['shop.*']}]", ["silver_2"]),
        ("[{principals: [a], tables: ['*'], types: ['?o']}]", ["silver_1"]),
        (
            "[{principals: [a], tables: ['*']}]",
            ["dead_letters", "silver_0", "silver_1", "silver_2"],
        ),
        ("[{principals: [a], types: ['*']}]", ["silver_0", "silver_1", "silver_2"]),
        ("[{principals: [a], tables: [SILVER_0, nothing]}]", []),
        ("[]", []),
    ],
)
def test_tables_by_name_and_by_type(tables: tuple[Any, ...], grants: str, names: list[str]) -> None:
    assert [right.name[-1] for right in wanted(grants, tables=tables)] == names


UNITY = "deploy: {databricks: {serverless: true, catalog: main}}\n"
USE = "[{principals: [a], tables: ['silver_*'], privileges: [SELECT, USE SCHEMA, USE CATALOG]}]"


def test_what_holds_a_table_is_granted_once_and_never_revoked(tables: tuple[Any, ...]) -> None:
    rights = wanted(USE, tables=tables, extra=UNITY)
    held = [r for r in rights if r.privilege != "SELECT"]
    assert held == [
        Right(("main",), "a", "USE CATALOG"),
        Right(("main", "games"), "a", "USE SCHEMA"),
    ]
    sql = [statement.sql for statement in statements(held, {})]
    assert sql == [
        "GRANT USE CATALOG ON CATALOG `main` TO `a`",
        "GRANT USE SCHEMA ON SCHEMA `main`.`games` TO `a`",
    ]
    # tables of other pipelines may need them
    record = dict.fromkeys(rights, Standing.GRANTED)
    revoked = statements([], record)
    assert {statement.right.privilege for statement in revoked} == {"SELECT"}


def test_privileges_on_a_catalog_need_one(tables: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError):
        wanted(USE, tables=tables)


def test_every_principal_gets_every_privilege_once(tables: tuple[Any, ...]) -> None:
    grants = (
        "[{principals: [a, b], tables: [silver_0], privileges: [SELECT, MODIFY]},"
        " {principals: 'b, c', types: [chess]}]"
    )
    found = wanted(grants, tables=tables)
    assert len(found) == 5
    catalog = "deploy: {databricks: {serverless: true, catalog: main}}\n"
    assert wanted(grants, tables=tables, extra=catalog)[0].name == ("main", "games", "silver_0")


@pytest.mark.parametrize(
    ("catalog", "place"),
    [
        ("{type: spark, schema: games}", ("games",)),
        ("{type: spark, name: main, schema: games}", ("main", "games")),
        ("{type: hive, schema: games}", ("games",)),
        ("{type: unity, url: 'http://h', name: main, schema: games}", ("main", "games")),
    ],
)
def test_names_are_those_of_the_catalog(
    tables: tuple[Any, ...], catalog: str, place: tuple[str, ...]
) -> None:
    text = FILE.replace("database: games", f"catalog: {catalog}")
    grants = "grants: [{principals: [a], tables: [silver_0]}]\n"
    (right,) = wanted_rights(load_text(text + grants, environ={}).config, tables)
    assert right.name == (*place, "silver_0")


@pytest.mark.parametrize(
    "grants",
    [
        "[{principals: [], tables: [x]}]",
        "[{principals: [a]}]",
        "[{principals: [a], tables: [x], privileges: [DROP]}]",
        "[{principals: [a], tables: [x], privileges: []}]",
        '[{principals: ["a\\nb"], tables: [x]}]',
        "[{principals: [a], table: [x]}]",
        "{principals: [a]}",
    ],
)
def test_a_list_that_cannot_work_is_refused(grants: str) -> None:
    with pytest.raises(DistributaryError) as caught:
        load_text(f"{FILE}grants: {grants}\n", environ={})
    assert caught.value.exit_code == 2


def test_names_are_quoted() -> None:
    right = Right(("games", "a`b"), "x`; DROP TABLE t; --", "ALL PRIVILEGES")
    assert GrantStatement(Verb.GRANT, right).sql == (
        "GRANT ALL PRIVILEGES ON TABLE `games`.`a``b` TO `x``; DROP TABLE t; --`"
    )
    assert GrantStatement(Verb.REVOKE, right).sql == (
        "REVOKE ALL PRIVILEGES ON TABLE `games`.`a``b` FROM `x``; DROP TABLE t; --`"
    )


def test_only_what_we_granted_is_revoked() -> None:
    record = {CHESS: Standing.GRANTED, GO: Standing.FOUND}
    assert statements([], record) == (GrantStatement(Verb.REVOKE, CHESS),)
    assert statements([CHESS, GO], record) == ()
    # nobody knows whether it was done: done again, or taken back
    pending = {CHESS: Standing.PENDING}
    assert statements([CHESS], pending) == (GrantStatement(Verb.GRANT, CHESS),)
    assert statements([], pending) == (GrantStatement(Verb.REVOKE, CHESS),)


class Catalog:
    """An executor that keeps what it was told."""

    parallel = 4

    def __init__(
        self, *held: Right, fail: Callable[[GrantStatement], None] = lambda s: None
    ) -> None:
        self.held, self.fail, self.done = set(held), fail, list[GrantStatement]()

    def held_by(self, right: Right) -> bool | None:
        return right in self.held

    def execute(self, statement: GrantStatement) -> None:
        self.fail(statement)
        self.done.append(statement)
        (self.held.add if statement.verb is Verb.GRANT else self.held.discard)(statement.right)


@pytest.fixture
def book(tmp_path: Path) -> RightsBook:
    return RightsBook(str(tmp_path / "lake"), "games")


def apply(book: RightsBook, rights: set[Right], catalog: Any) -> dict[Right, GrantResult]:
    outcomes = apply_rights(book, frozenset(rights), catalog, waiting=lambda: None)
    return {outcome.statement.right: outcome.result for outcome in outcomes}


def test_granted_twice_is_granted_once_and_then_revoked(book: RightsBook) -> None:
    catalog = Catalog()
    assert apply(book, {CHESS, GO}, catalog) == {CHESS: GrantResult.DONE, GO: GrantResult.DONE}
    assert apply(book, {CHESS, GO}, catalog) == {}
    assert apply(book, {GO}, catalog) == {CHESS: GrantResult.DONE}
    assert catalog.held == {GO}
    assert book.read() == {GO: Standing.GRANTED}


def test_what_others_granted_stays(book: RightsBook) -> None:
    catalog = Catalog(CHESS)
    assert apply(book, {CHESS}, catalog) == {CHESS: GrantResult.FOUND}
    assert apply(book, {CHESS}, catalog) == {}
    assert apply(book, set(), catalog) == {}
    assert catalog.held == {CHESS} and not catalog.done
    assert book.read() == {}


def test_a_part_that_fails_is_tried_again_alone(book: RightsBook) -> None:
    def refuse(statement: GrantStatement) -> None:
        if statement.right == GO:
            raise DeployError("no")

    catalog = Catalog(fail=refuse)
    assert apply(book, {CHESS, GO}, catalog) == {CHESS: GrantResult.DONE, GO: GrantResult.FAILED}
    assert book.read() == {CHESS: Standing.GRANTED}
    catalog.fail = lambda statement: None
    assert apply(book, {CHESS, GO}, catalog) == {GO: GrantResult.DONE}
    assert catalog.held == {CHESS, GO}


def test_a_revoke_that_fails_is_not_forgotten(book: RightsBook) -> None:
    catalog = Catalog()
    apply(book, {CHESS}, catalog)

    def refuse(statement: GrantStatement) -> None:
        raise DeployError("no")

    catalog.fail = refuse
    assert apply(book, set(), catalog) == {CHESS: GrantResult.FAILED}
    assert book.read() == {CHESS: Standing.GRANTED}


def test_no_answer_stops_the_rest_and_is_not_forgotten(book: RightsBook) -> None:
    def silent(statement: GrantStatement) -> None:
        raise DeployUnavailableError("no answer")

    catalog = Catalog(fail=silent)
    catalog.parallel = 1
    assert apply(book, {CHESS, GO}, catalog) == {
        CHESS: GrantResult.UNKNOWN,
        GO: GrantResult.NOT_TRIED,
    }
    assert book.read() == {CHESS: Standing.PENDING}
    # no longer asked for: it may have been granted, so it is taken back
    catalog.fail = lambda statement: None
    assert apply(book, set(), catalog) == {CHESS: GrantResult.DONE}
    assert catalog.done == [GrantStatement(Verb.REVOKE, CHESS)]


def test_a_crash_after_the_grant_loses_track_of_nothing(book: RightsBook) -> None:
    class Crash(BaseException):
        """As if the process was killed."""

    def crash(statement: GrantStatement) -> None:
        if len(catalog.done) == 1:
            raise Crash

    catalog = Catalog(fail=crash)
    catalog.parallel = 1
    with pytest.raises(Crash):
        apply(book, {CHESS, GO}, catalog)
    assert book.read() == {CHESS: Standing.PENDING, GO: Standing.PENDING}
    catalog.fail = lambda statement: None
    apply(book, {GO}, catalog)
    assert catalog.held == {GO}


def test_a_thousand_tables(book: RightsBook) -> None:
    rights = {Right(("games", f"t{n}"), p, "SELECT") for n in range(1000) for p in ("a", "b", "c")}
    catalog = Catalog()
    assert len(apply(book, rights, catalog)) == 3000
    assert apply(book, rights, catalog) == {}
    assert len(book.read()) == 3000


def test_a_record_that_is_damaged_is_not_guessed(book: RightsBook) -> None:
    apply(book, {CHESS}, Catalog())
    path = Path(book.path)
    for content in ("", "{}", '{"format": 1, "pipeline": "other", "rights": []}', '{"format": 2}'):
        path.write_text(content)
        with pytest.raises(DeployError):
            book.read()


def test_two_pipelines_have_two_records(tmp_path: Path) -> None:
    names = ("games", "Games", "a.b", "x" * 200)
    books = [RightsBook(str(tmp_path), name) for name in names]
    assert len({book.path for book in books}) == len(names)
    for book in books:
        assert book.read() == {}


class ParseException(Exception):
    pass


class Session:
    """A Spark session that only listens."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.said = error, list[str]()

    def sql(self, sqlQuery: str) -> object:
        self.said.append(sqlQuery)
        if self.error is not None:
            # as PySpark does
            logging.getLogger("SQLQueryContextLogger").error("a long traceback")
            raise self.error
        return None


def run_spark(
    book: RightsBook, session: Session, rights: set[Right]
) -> tuple[StatementOutcome, ...]:
    return apply_rights(book, frozenset(rights), SparkExecutor(session), waiting=lambda: None)


def test_spark_gets_the_statements(book: RightsBook) -> None:
    session = Session()
    run_spark(book, session, {CHESS})
    run_spark(book, session, set())
    assert session.said == [
        "GRANT SELECT ON TABLE `games`.`silver_0` TO `analysts`",
        "REVOKE SELECT ON TABLE `games`.`silver_0` FROM `analysts`",
    ]


def test_a_spark_without_an_authoriser_is_asked_once(book: RightsBook) -> None:
    session = Session(ParseException("Operation not allowed: GRANT\nat line 1"))
    first, second = run_spark(book, session, {CHESS, GO})
    assert (first.result, second.result) == (GrantResult.FAILED, GrantResult.NOT_TRIED)
    assert first.error is not None and first.error.code == "GRANT_REFUSED"
    assert len(session.said) == 1
    assert book.read() == {}


def test_a_refusal_of_one_table_is_told_for_it(
    book: RightsBook, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session(RuntimeError("user lacks privilege \x1b[31m"))
    outcomes = run_spark(book, session, {CHESS, GO})
    assert [outcome.result for outcome in outcomes] == [GrantResult.FAILED] * 2
    assert outcomes[0].error is not None and "\x1b" not in outcomes[0].error.evidence
    assert caplog.records == []
    logging.getLogger("mine").error("told")
    assert len(caplog.records) == 1


def test_a_table_that_is_gone_has_no_grants(book: RightsBook) -> None:
    run_spark(book, Session(), {CHESS})
    gone = Session(RuntimeError("[TABLE_OR_VIEW_NOT_FOUND] silver_0"))
    (outcome,) = run_spark(book, gone, set())
    assert outcome.result is GrantResult.DONE
    assert book.read() == {}


def test_the_record_is_plain_json(book: RightsBook) -> None:
    apply(book, {CHESS}, Catalog())
    content = json.loads(Path(book.path).read_text())
    assert content["rights"] == [
        {
            "name": ["games", "silver_0"],
            "principal": "analysts",
            "privilege": "SELECT",
            "standing": "granted",
        }
    ]
