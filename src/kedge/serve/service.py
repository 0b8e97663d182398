"""Everything that serves one project, put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from kedge.errors import KedgeError
from kedge.serve import asking, events
from kedge.serve.active import ActiveModel
from kedge.serve.deciding import Deciding
from kedge.serve.embedding import ASKED, TAUGHT
from kedge.serve.intake import Intake, RequestIntake, Taken, digest
from kedge.serve.limits import Budget, Held, Limits, Rate, Refused
from kedge.serve.monitoring import Metrics, memory_bytes
from kedge.serve.project import Project
from kedge.serve.rounds import Rounds
from kedge.serve.security import Listen, Tokens
from kedge.serve.teaching import OtherVersion, Teaching
from kedge.serve.uploads import Upload, in_order
from kedge.serve.views import Views

STORED_TOGETHER, STORED_BYTES = 16, 64 << 20  # pictures and their bytes, in one transaction


@dataclass(frozen=True)
class Settings:
    """How a project is served."""

    listen: Listen
    tokens: Tokens | None = None  # None: everybody who can reach the server may do everything
    limits: Limits = field(default_factory=Limits)


class Service:
    def __init__(self, project: Project, settings: Settings) -> None:
        limits = settings.limits
        self.project, self.settings, self.limits = project, settings, limits
        self.metrics, self.budget = Metrics(), Budget(limits.uploads_bytes)
        self.wrong_tokens = Rate(limits.wrong_tokens)
        self.intake = Intake(limits, self.metrics)
        self.active = ActiveModel(project)
        self.teaching = Teaching(project, self.active)
        self.rounds = Rounds(project, self.teaching)
        self.deciding = Deciding(self.teaching, self.intake)
        self.views = Views(project, self.active, self.rounds, limits)
        # For asking alone: other threads may wait for a disk, or for each other.
        self.threads = ThreadPoolExecutor(2, "asking")

    def close(self) -> None:
        self.rounds.close()
        self.intake.close()
        self.threads.shutdown(cancel_futures=True)

    def role_of_token(self, tokens: Tokens, token: str, client: str) -> str:
        """The role of a token. Raises Refused for a wrong one; right ones are never kept waiting,
        since many clients may share an address."""
        role = tokens.role_of(token.strip())
        if role is None:
            self.wrong_tokens.check(client, "wrong tokens")
            self.wrong_tokens.add(client)
            raise Refused(401, "This token is not valid.")
        return role

    async def ask(
        self,
        uploads: AsyncGenerator[Upload, None],
        held: Held,
        top: int,
        reject: float | None,
    ) -> dict[str, Any]:
        """Answers about pictures, all of one version."""
        loop = asyncio.get_running_loop()
        snapshot = await loop.run_in_executor(self.threads, self.active.snapshot)
        classifier = snapshot.check_can_answer()
        if reject is not None:
            try:
                classifier.check_reject(reject)
            except KedgeError as error:
                raise Refused(422, str(error)) from None
        request = self.intake.for_request(held.client, ASKED)

        async def take(upload: Upload) -> Taken:
            sha256 = await digest(upload.content)
            taken = await request.take(upload, snapshot, sha256, keep=False)
            return Taken(Upload(upload.name), sha256, taken.features, refused=taken.refused)

        async with aclosing(in_order(uploads, held, take)) as results:
            taken = [each async for each in results]
        if not taken:
            raise Refused(422, "There is no picture in the request.")
        said = await loop.run_in_executor(
            self.threads, asking.answers, snapshot, taken, top, reject
        )
        self.metrics.count("kedge_pictures_asked_total", len(said["answers"]))
        return said

    async def teach(
        self,
        uploads: AsyncGenerator[Upload, None],
        held: Held,
        role: str,
        class_id: int,
    ) -> dict[str, Any]:
        """Store pictures of a class. What is returned as added is on disk."""
        await asyncio.to_thread(self.project.classes.get, class_id)
        request = self.intake.for_request(held.client, TAUGHT)
        added: list[dict[str, str]] = []
        known: list[dict[str, str]] = []
        refused: list[dict[str, str]] = []
        waiting: list[Taken] = []

        async def take(upload: Upload) -> Taken:
            await asyncio.to_thread(self.project.check_room, self.limits)
            sha256 = await digest(upload.content)
            if not upload.refused:
                why = await asyncio.to_thread(self.teaching.already_stored, class_id, sha256)
                if why is not None:
                    return Taken(Upload(upload.name), sha256, refused=why)
            snapshot = await asyncio.to_thread(self.active.snapshot)
            return await request.take(upload, snapshot, sha256, keep=True)

        async def store() -> None:
            stored = await self._store(class_id, waiting, request)
            new = {each.sha256 for each in stored}
            for each in waiting:
                item = {"sha256": each.sha256, "name": each.upload.name}
                (added if each.sha256 in new else known).append(item)
                new.discard(each.sha256)  # a second copy in the same request
            waiting.clear()

        try:
            async with aclosing(in_order(uploads, held, take)) as results:
                async for each in results:
                    if each.features is not None:
                        waiting.append(each)
                    elif each.refused:
                        refused.append({"name": each.upload.name, "reason": each.refused})
                    else:
                        known.append({"sha256": each.sha256, "name": each.upload.name})
                    size = sum(len(each.upload.content) for each in waiting)
                    if len(waiting) >= STORED_TOGETHER or size > STORED_BYTES:
                        await store()
        finally:  # what came before a fault or a stop is kept, too
            if waiting:
                await store()
            if added:
                detail = {"class": class_id, "pictures": len(added)}
                await asyncio.to_thread(
                    events.record, self.project.database, role, "pictures added", **detail
                )
                self.metrics.count("kedge_pictures_taught_total", len(added))
        if not (added or known or refused):
            raise Refused(422, "There is no picture in the request.")
        return {"added": added, "refused": refused, "known": known}

    async def _store(
        self, class_id: int, waiting: Sequence[Taken], request: RequestIntake
    ) -> list[Taken]:
        """Store pictures, with features of the version that is in use then."""
        taken = list(waiting)
        while True:
            snapshot = await asyncio.to_thread(self.active.snapshot)
            for i, each in enumerate(taken):
                if each.version != snapshot.version:
                    assert each.decoded is not None
                    features = await request.embed(each.decoded, snapshot)
                    taken[i] = replace(each, features=features, version=snapshot.version)
            with suppress(OtherVersion):
                return await asyncio.to_thread(
                    self.teaching.store, class_id, taken, snapshot.version
                )

    def gauges(self) -> dict[str, float]:
        """Numbers of this moment, for /metrics."""
        state = self.views.state("improve")
        job = self.project.jobs.unfinished()
        return {
            "kedge_pictures": state["counts"]["pictures"],
            "kedge_classes": state["counts"]["classes"],
            "kedge_disk_bytes": state["disk"]["used"],
            "kedge_disk_quota_bytes": state["disk"]["quota"],
            "kedge_round_running": float(job is not None and job["state"] == "running"),
            "kedge_feature_cache_hits": self.intake.cache.hits,
            "kedge_feature_cache_misses": self.intake.cache.misses,
            "kedge_pictures_waiting": self.intake.embedder.waiting,
            "kedge_upload_bytes": self.budget.used,
            "kedge_memory_bytes": memory_bytes(),
        }
