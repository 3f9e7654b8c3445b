"""The record store: every trial is on disk before the next one starts.

Any SQLAlchemy URL works; the default is one SQLite file in the run's output directory. Rows are only ever
added, so a run that is killed loses nothing that it had measured.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import ForeignKey, UniqueConstraint, create_engine, event, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from costmodel.candidates import LEVELS, PIPELINES, Candidates
from tuner.errors import TuneError, UsageError
from tuner.task import Task

SCHEMA_VERSION = 1

OK = "ok"
"""Status of a record whose candidate ran and gave the right values; only these have a meaningful ratio."""


class _Base(DeclarativeBase):
    pass


class RunRow(_Base):
    """One tuning run and what must be equal for another run to resume it."""

    __tablename__ = "runs"
    id: Mapped[int] = mapped_column(primary_key=True)
    schema_version: Mapped[int]
    created: Mapped[str]
    identity: Mapped[str] = mapped_column(index=True)
    program: Mapped[str]
    machine: Mapped[str]
    versions: Mapped[str]
    settings: Mapped[str]
    finished: Mapped[bool] = mapped_column(default=False)


class TaskRow(_Base):
    """One task of a run, with all that features need."""

    __tablename__ = "tasks"
    __table_args__ = (UniqueConstraint("run_id", "key"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"))
    key: Mapped[str]
    name: Mapped[str]
    root_op: Mapped[str]
    default_config: Mapped[str]
    count: Mapped[int]
    share: Mapped[float]
    profile_us: Mapped[float]


class RecordRow(_Base):
    """One candidate's outcome."""

    __tablename__ = "records"
    __table_args__ = (UniqueConstraint("run_id", "task_key", "config"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), index=True)
    task_key: Mapped[str] = mapped_column(index=True)
    config: Mapped[str]
    candidate: Mapped[str]
    round: Mapped[int]
    status: Mapped[str]
    us: Mapped[float | None]
    default_us: Mapped[float | None]
    ratio: Mapped[float | None]
    ratio_low: Mapped[float | None]
    ratio_high: Mapped[float | None]
    samples: Mapped[int]
    stopped_early: Mapped[bool]
    disturbed: Mapped[bool]
    max_abs_error: Mapped[float | None]
    max_rel_error: Mapped[float | None]
    predicted: Mapped[float | None]
    compile_s: Mapped[float]
    measure_s: Mapped[float]
    message: Mapped[str]
    created: Mapped[str]


@dataclass(frozen=True)
class Record:
    """One candidate's outcome: compiled or why not, its times, and the default's beside them.

    Times are in microseconds; ``ratio`` is candidate time over default time, both measured in turn.
    ``status`` is ``"ok"``, or the kind of failure: ``compile_failed``, ``compile_timeout``,
    ``compile_crashed``, ``compile_memory``, ``wrong``, ``crashed``, ``hung``, ``failed`` or ``memory``.
    ``predicted`` is what the cost model expected of ``log(ratio)`` before measuring.
    """

    task_key: str
    config: str
    candidate: str
    round: int
    status: str
    us: float | None = None
    default_us: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    samples: int = 0
    stopped_early: bool = False
    disturbed: bool = False
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    predicted: float | None = None
    compile_s: float = 0.0
    measure_s: float = 0.0
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether the candidate may be chosen."""
        return self.status == OK and self.ratio is not None

    @property
    def log_ratio(self) -> float:
        """Natural logarithm of the ratio; NaN where the candidate failed."""
        return float(np.log(self.ratio)) if self.ok and self.ratio else float("nan")


def encode_candidate(table: Candidates, row: int) -> str:
    """Write one row as JSON that :func:`decode_candidates` reads without IREE."""
    levels = {name: table.tiles[row, i].tolist() for i, name in enumerate(LEVELS) if table.tiles[row, i].any()}
    return json.dumps(
        {
            "loops": table.loops,
            "tiles": levels,
            "pipeline": PIPELINES[int(table.pipeline[row])],
            "peeling": bool(table.peeling[row]),
        },
        separators=(",", ":"),
    )


def decode_candidates(texts: Sequence[str]) -> Candidates:
    """Rebuild a table from :func:`encode_candidate`'s texts (all of one root op, at least one)."""
    raws = [json.loads(t) for t in texts]
    tiles = np.zeros((len(raws), len(LEVELS), raws[0]["loops"]), np.int32)
    for i, raw in enumerate(raws):
        for name, sizes in raw["tiles"].items():
            tiles[i, LEVELS.index(name)] = sizes
    return Candidates(
        tiles,
        np.array([PIPELINES.index(r["pipeline"]) for r in raws], np.int8),
        np.array([r["peeling"] for r in raws], np.bool_),
    )


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")


class RecordStore:
    """Opens a database of runs, tasks and records.

    Parameters
    ----------
    url
        A SQLAlchemy URL, or the path of a SQLite file.

    Raises
    ------
    UsageError
        If the URL can't be understood or the file is no such database.
    """

    def __init__(self, url: str | Path) -> None:
        text = str(url)
        self.url = text if "://" in text else f"sqlite:///{text}"
        try:
            self._engine: Engine = create_engine(self.url)
            if self._engine.dialect.name == "sqlite":
                event.listen(self._engine, "connect", _sqlite_settings)
            self._create_tables()
        except (SQLAlchemyError, ImportError) as error:
            raise UsageError(f"cannot open the record store {text}: {_reason(error)}") from error
        self._sessions = sessionmaker(self._engine, expire_on_commit=False)

    def _create_tables(self, tries: int = 4) -> None:
        """Create what is missing; another process may be creating the same tables at this moment."""
        for left in reversed(range(tries)):
            try:
                _Base.metadata.create_all(self._engine)
                return
            except (OperationalError, ProgrammingError):
                if not left:
                    raise
                time.sleep(0.05)

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        """Give a session that commits at the end; a full disk and its like become a clear error."""
        try:
            with self._sessions.begin() as session:
                yield session
        except DBAPIError as error:
            raise TuneError(
                f"cannot write to the record store {self.url}: {_reason(error)}. "
                "All earlier records are safe; free some space and go on with --resume"
            ) from error

    def start_run(
        self,
        *,
        identity: str,
        program: Mapping[str, Any],
        machine: Mapping[str, Any],
        versions: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> int:
        """Add a run and return its number."""
        row = RunRow(
            schema_version=SCHEMA_VERSION,
            created=_now(),
            identity=identity,
            program=json.dumps(program),
            machine=json.dumps(machine),
            versions=json.dumps(versions),
            settings=json.dumps(settings),
        )
        with self._writing() as session:
            session.add(row)
            session.flush()
            return row.id

    def find_run(self, identity: str) -> int | None:
        """Find the newest run with this identity (same program, flags, device, machine, compiler)."""
        with self._sessions() as session:
            return session.scalars(
                select(RunRow.id).where(RunRow.identity == identity).order_by(RunRow.id.desc()).limit(1)
            ).first()

    def runs(self) -> list[int]:
        """List the runs, oldest first."""
        with self._sessions() as session:
            return list(session.scalars(select(RunRow.id).order_by(RunRow.id)))

    def finish_run(self, run: int) -> None:
        """Mark a run as finished."""
        with self._writing() as session:
            row = session.get(RunRow, run)
            if row is not None:
                row.finished = True

    def add_task(self, run: int, task: Task) -> None:
        """Add a task to a run, unless it is there already."""
        with self._writing() as session:
            known = session.scalars(
                select(TaskRow).where(TaskRow.run_id == run, TaskRow.key == task.dispatch.key)
            ).first()
            if known is None:
                session.add(
                    TaskRow(
                        run_id=run,
                        key=task.dispatch.key,
                        name=task.name,
                        root_op=task.dispatch.root.to_json() if task.dispatch.root else "",
                        default_config=task.dispatch.default_config,
                        count=task.count,
                        share=task.share,
                        profile_us=task.profile_us,
                    )
                )

    def add(self, run: int, record: Record) -> None:
        """Add one record; when this returns it is on disk."""
        with self._writing() as session:
            session.add(RecordRow(run_id=run, created=_now(), **record.__dict__))

    def records(self, run: int, task_key: str | None = None) -> list[Record]:
        """List a run's records, oldest first."""
        query = select(RecordRow).where(RecordRow.run_id == run).order_by(RecordRow.id)
        if task_key is not None:
            query = query.where(RecordRow.task_key == task_key)
        names = Record.__dataclass_fields__
        with self._sessions() as session:
            return [Record(**{n: getattr(row, n) for n in names}) for row in session.scalars(query)]

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _sqlite_settings(connection: Any, _record: Any) -> None:
    """WAL keeps each commit whole through a kill -9 and lets other processes read meanwhile."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()


def _reason(error: BaseException) -> str:
    original = getattr(error, "orig", None) or error
    return str(original).strip().splitlines()[0]
