"""Durable jobs: rows in SQLite (or the database of a URL), files in one folder a job."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Engine,
    Integer,
    Text,
    create_engine,
    delete,
    event,
    func,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
STATES = (QUEUED, RUNNING, DONE, FAILED, CANCELLED)
FINISHED = (DONE, FAILED, CANCELLED)


class Base(DeclarativeBase):
    """All tables."""


class Job(Base):
    """One request: make a model of a model (`optimize`, `grad`, ...), or check two. Times are seconds since 1970."""

    __tablename__ = "jobs"

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(Text, unique=True, index=True)
    batch: Mapped[str | None] = mapped_column(Text, index=True)
    kind: Mapped[str] = mapped_column(Text, default="optimize")
    state: Mapped[str] = mapped_column(Text, default=QUEUED, index=True)
    name: Mapped[str] = mapped_column(Text)
    key: Mapped[str] = mapped_column(Text, index=True)
    request: Mapped[dict[str, Any]] = mapped_column(JSON)
    bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    created: Mapped[float]
    started: Mapped[float | None]
    finished: Mapped[float | None]
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    answered_by: Mapped[str | None] = mapped_column(Text)
    summary: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    problem: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class Batch(Base):
    """Several models that came at once; each is a job that names its batch. How it fares is what its jobs say."""

    __tablename__ = "batches"

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(Text, unique=True, index=True)
    name: Mapped[str] = mapped_column(Text)
    options: Mapped[dict[str, Any]] = mapped_column(JSON)
    bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    created: Mapped[float]


def new_id() -> str:
    """An unguessable name of a job or a batch."""
    return secrets.token_hex(8)


def upgrade(engine: Engine) -> None:
    """Give a table of an older egraft, whose jobs had no batch and whose `bytes` ended at 2 GB, today's columns."""
    columns = {each["name"]: each["type"] for each in inspect(engine).get_columns("jobs")}
    with engine.begin() as connection:
        if "batch" not in columns:
            connection.execute(text("ALTER TABLE jobs ADD COLUMN batch TEXT"))
            connection.execute(text("CREATE INDEX IF NOT EXISTS ix_jobs_batch ON jobs (batch)"))
        if engine.dialect.name != "sqlite" and not isinstance(columns["bytes"], BigInteger):
            connection.execute(text("ALTER TABLE jobs ALTER COLUMN bytes TYPE BIGINT"))  # in SQLite it has 64 bits


class Store:
    """Jobs and their files. Safe to use from several threads of one process."""

    def __init__(self, data: Path, url: str | None = None) -> None:
        self.jobs, self.incoming, self.scratch = data / "jobs", data / "incoming", data / "scratch"
        for folder in (data, self.jobs, self.incoming, self.scratch):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.engine = create_engine(url or f"sqlite:///{(data / 'jobs.db').resolve()}")
        if self.engine.dialect.name == "sqlite":
            _durable(self.engine)
        Base.metadata.create_all(self.engine)
        upgrade(self.engine)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def folder(self, job: str) -> Path:
        """The folder of a job's files."""
        return self.jobs / job

    # ------------------------------------------------------------ writing

    def add(self, job: Job) -> Job:
        """Write a job; when this returns it outlives the process."""
        with Session(self.engine, expire_on_commit=False) as session:
            session.add(job)
            session.commit()
        return job

    def add_batch(self, batch: Batch, jobs: Sequence[Job]) -> None:
        """Write a batch and its jobs: after a crash all of them are there, or none."""
        with Session(self.engine, expire_on_commit=False) as session:
            session.add(batch)
            session.add_all(jobs)
            session.commit()

    def claim(self) -> Job | None:
        """The oldest job that waits, now running; None if none waits."""
        with Session(self.engine, expire_on_commit=False) as session:
            while True:
                job = session.scalar(select(Job).where(Job.state == QUEUED).order_by(Job.number).limit(1))
                if job is None:
                    return None
                values = {"state": RUNNING, "started": time.time(), "attempts": job.attempts + 1}
                if self._change(session, job.id, (QUEUED,), values):
                    session.refresh(job)
                    return job

    def finish(self, job: str, state: str, *, summary: dict[str, Any] | None = None,
               problem: dict[str, Any] | None = None, answered_by: str | None = None) -> bool:
        """End a job that waits or runs; False if it had ended before (it was cancelled)."""
        values = {"state": state, "finished": time.time(), "summary": summary, "problem": problem,
                  "answered_by": answered_by}
        with Session(self.engine) as session:
            return self._change(session, job, (QUEUED, RUNNING), values)

    def requeue(self, job: str, forget_attempt: bool = False) -> bool:
        """Let a running job wait again; `forget_attempt` where it was not the job's fault."""
        values: dict[str, Any] = {"state": QUEUED, "started": None}
        if forget_attempt:
            values["attempts"] = Job.attempts - 1
        with Session(self.engine) as session:
            return self._change(session, job, (RUNNING,), values)

    def cancel_waiting(self, batch: str) -> int:
        """Cancel at once what waits of a batch, so that none of it starts while what runs is killed."""
        query = update(Job).where(Job.batch == batch, Job.state == QUEUED)
        with Session(self.engine) as session:
            done = session.execute(query.values(state=CANCELLED, finished=time.time()))
            session.commit()
        assert isinstance(done, CursorResult)
        return done.rowcount

    def remove_batch(self, batch: str) -> None:
        """Forget a batch with its jobs and their files."""
        jobs = [job.id for job in self.members(batch)]
        with Session(self.engine) as session:
            session.execute(delete(Job).where(Job.batch == batch))
            session.execute(delete(Batch).where(Batch.id == batch))
            session.commit()
        for job in jobs:
            shutil.rmtree(self.folder(job), ignore_errors=True)

    def remove(self, job: str) -> None:
        """Forget a job and its files."""
        with Session(self.engine) as session:
            session.execute(delete(Job).where(Job.id == job))
            session.commit()
        shutil.rmtree(self.folder(job), ignore_errors=True)

    @staticmethod
    def _change(session: Session, job: str, states: Sequence[str], values: dict[str, Any]) -> bool:
        done = session.execute(update(Job).where(Job.id == job, Job.state.in_(states)).values(**values))
        session.commit()
        assert isinstance(done, CursorResult)
        return done.rowcount == 1

    # ------------------------------------------------------------ reading

    def get(self, job: str) -> Job | None:
        """One job."""
        with Session(self.engine, expire_on_commit=False) as session:
            return session.scalar(select(Job).where(Job.id == job))

    def page(self, limit: int, before: int | None = None, state: str | None = None,
             kinds: Collection[str] = ()) -> list[Job]:
        """Jobs (of these kinds), the youngest first; `before` is the number of the last one of the page before."""
        query = select(Job).order_by(Job.number.desc()).limit(limit)
        if before is not None:
            query = query.where(Job.number < before)
        if state is not None:
            query = query.where(Job.state == state)
        if kinds:
            query = query.where(Job.kind.in_(kinds))
        with Session(self.engine, expire_on_commit=False) as session:
            return list(session.scalars(query))

    def batch(self, batch: str) -> Batch | None:
        """One batch."""
        with Session(self.engine, expire_on_commit=False) as session:
            return session.scalar(select(Batch).where(Batch.id == batch))

    def batches(self, limit: int, before: int | None = None) -> list[Batch]:
        """Batches, the youngest first, as in `page`."""
        query = select(Batch).order_by(Batch.number.desc()).limit(limit)
        if before is not None:
            query = query.where(Batch.number < before)
        with Session(self.engine, expire_on_commit=False) as session:
            return list(session.scalars(query))

    def members(self, batch: str) -> list[Job]:
        """The jobs of a batch, in the order in which they are worked on."""
        with Session(self.engine, expire_on_commit=False) as session:
            return list(session.scalars(select(Job).where(Job.batch == batch).order_by(Job.number)))

    def pulse(self, batch: str) -> list[tuple[Any, ...]]:
        """What changes whenever a job of a batch does; far cheaper than its jobs."""
        query = select(Job.state, func.count(), func.sum(Job.attempts)).where(Job.batch == batch).group_by(Job.state)
        with Session(self.engine) as session:
            return sorted(tuple(row) for row in session.execute(query))

    def counts(self) -> dict[str, int]:
        """State -> number of jobs."""
        with Session(self.engine) as session:
            rows = session.execute(select(Job.state, func.count()).group_by(Job.state)).all()
        found = {str(state): int(count) for state, count in rows}
        return {state: found.get(state, 0) for state in STATES}

    def running(self) -> list[Job]:
        """Jobs that run (or ran when the process that owned them died)."""
        with Session(self.engine, expire_on_commit=False) as session:
            return list(session.scalars(select(Job).where(Job.state == RUNNING).order_by(Job.number)))

    def answer(self, key: str) -> Job | None:
        """The latest finished job with the same content, options and egraft."""
        query = select(Job).where(Job.key == key, Job.state == DONE).order_by(Job.number.desc()).limit(1)
        with Session(self.engine, expire_on_commit=False) as session:
            return session.scalar(query)

    def sweep(self) -> None:
        """Remove files of uploads that never became jobs."""
        shutil.rmtree(self.incoming, ignore_errors=True)
        self.incoming.mkdir(mode=0o700)
        for folder in self.jobs.iterdir():
            if self.get(folder.name) is None:
                shutil.rmtree(folder, ignore_errors=True)


def _durable(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _(connection: Any, record: object) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000"):
            connection.execute(f"PRAGMA {pragma}")
