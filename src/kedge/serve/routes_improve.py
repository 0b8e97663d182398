"""Routes of rounds and versions, and of what is irrevocable."""

from __future__ import annotations

import os
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from kedge.serve import download, events
from kedge.serve.forgetting import forget, what_remains
from kedge.serve.limits import Refused
from kedge.serve.routes import CurrentRole, CurrentService, Number, needing

router = APIRouter(prefix="/api", tags=["improve"])


class RoundSettings(BaseModel):
    settings: dict[str, Any] = {}


class Confirmation(BaseModel):
    confirm: bool = False


def _job(service: CurrentService, job: int) -> dict[str, Any]:
    return service.rounds.describe(service.project.jobs.get(job))


@router.post("/rounds", status_code=202, **needing("improve"))
def start_round(
    service: CurrentService, role: CurrentRole, body: RoundSettings | None = None
) -> dict[str, Any]:
    """Start a round on all pictures that the version in use was not trained on."""
    settings = {} if body is None else body.settings
    return _job(service, service.rounds.start(role, settings))


@router.get("/jobs", **needing("ask"))
def list_jobs(service: CurrentService) -> dict[str, Any]:
    """All rounds, the latest first."""
    return {"jobs": [service.rounds.describe(row) for row in service.project.jobs.all()]}


@router.get("/jobs/{job}", **needing("ask"))
def one_job(job: Number, service: CurrentService) -> dict[str, Any]:
    """A round, and how far it is."""
    return _job(service, job)


@router.post("/jobs/{job}/cancel", **needing("improve"))
def cancel_job(job: Number, service: CurrentService, role: CurrentRole) -> dict[str, Any]:
    """Stop a round and throw away what it has done."""
    service.rounds.cancel(role, job)
    return _job(service, job)


@router.post("/jobs/{job}/continue", status_code=202, **needing("improve"))
def continue_job(job: Number, service: CurrentService, role: CurrentRole) -> dict[str, Any]:
    """Continue an interrupted round from its last saved epoch."""
    service.rounds.resume(role, job)
    return _job(service, job)


@router.post("/versions/{version}/activate", **needing("improve"))
def activate(version: Number, service: CurrentService, role: CurrentRole) -> dict[str, Any]:
    """Use a version: take over what a round has made, or go back or forward to another."""
    return service.deciding.activate(role, version)


@router.post("/versions/{version}/discard", **needing("improve"))
def discard(version: Number, service: CurrentService, role: CurrentRole) -> dict[str, Any]:
    """Give up what a round has made."""
    service.deciding.discard(role, version)
    return {"discarded": version}


@router.get("/versions/{version}/model", **needing("improve"))
def download_model(version: Number, service: CurrentService) -> StreamingResponse:
    """The model file, with the present names of its classes."""
    file = download.open_model(service.project, version)
    name = quote(f"{service.project.name}-{version}.kedge")
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        "content-length": str(os.fstat(file.fileno()).st_size),
    }
    return StreamingResponse(
        download.parts(file), media_type="application/octet-stream", headers=headers
    )


@router.get("/versions/{version}/remains", **needing("improve"))
def remains(version: Number, service: CurrentService) -> dict[str, Any]:
    """What would remain if the pictures of a version were forgotten. Of a class with `one_picture`
    the numbers that remain are those of that picture, from which parts of it can be guessed."""
    service.project.versions.get(version)
    return what_remains(service.teaching, version)


@router.post("/versions/{version}/forget", **needing("improve"))
def forget_pictures(
    version: Number, service: CurrentService, role: CurrentRole, body: Confirmation
) -> dict[str, Any]:
    """Delete the pictures that a version was trained on, for good; says what remains."""
    if not body.confirm:
        raise Refused(422, 'This cannot be undone: confirm it with {"confirm": true}.')
    return forget(service.teaching, service.intake, role, version)


@router.get("/events", **needing("improve"))
def list_events(
    service: CurrentService,
    before: Annotated[int | None, Query(ge=0, lt=1 << 53)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> dict[str, Any]:
    """Who changed what, the latest first."""
    return {"events": events.latest(service.project.database, before, limit)}
