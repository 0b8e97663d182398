"""Routes that change classes and pictures, and show pictures."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from kedge.serve.limits import Refused
from kedge.serve.middleware import client_of
from kedge.serve.pictures import SHA256
from kedge.serve.routes import PICTURES, CurrentRole, CurrentService, Number, needing
from kedge.serve.uploads import read_uploads

router = APIRouter(prefix="/api", tags=["teach"])
MOST_LISTED = 500


class Name(BaseModel):
    name: str


@router.post("/classes", status_code=201, **needing("teach"))
def make_class(service: CurrentService, role: CurrentRole, body: Name) -> dict[str, Any]:
    """Make a class, or name a removed one of this name again."""
    return service.views.one_class(service.teaching.make_class(role, body.name))


@router.patch("/classes/{class_id}", **needing("teach"))
def rename_class(
    class_id: Number, service: CurrentService, role: CurrentRole, body: Name
) -> dict[str, Any]:
    """Rename a class; versions that have learned it keep it."""
    service.teaching.rename_class(role, class_id, body.name)
    return service.views.one_class(class_id)


@router.delete("/classes/{class_id}", **needing("teach"))
def delete_class(class_id: Number, service: CurrentService, role: CurrentRole) -> dict[str, Any]:
    """Delete a class with its pictures. Versions that have learned it keep what they learned, but
    pictures are no longer named as it; made again, it is named again."""
    return service.teaching.delete_class(role, class_id)


@router.get("/classes/{class_id}/pictures", **needing("teach"))
def list_pictures(
    class_id: Number,
    service: CurrentService,
    offset: Annotated[int, Query(ge=0, lt=1 << 53)] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
) -> dict[str, Any]:
    """The pictures of a class, the latest first."""
    return service.views.pictures(class_id, offset, limit)


@router.post("/classes/{class_id}/pictures", **needing("teach", PICTURES))
async def add_pictures(
    class_id: Number, request: Request, service: CurrentService, role: CurrentRole
) -> dict[str, Any]:
    """Teach pictures of a class. They are stored and used at once."""
    with service.budget.holding(client_of(request.scope)) as held:
        uploads = read_uploads(request, service.limits, held)
        return await service.teach(uploads, held, role, class_id)


@router.delete("/pictures/{sha256}", **needing("teach"))
def delete_picture(sha256: str, service: CurrentService, role: CurrentRole) -> dict[str, Any]:
    """Delete a picture. A version that was trained on it is not changed."""
    service.teaching.delete_picture(role, _checked(sha256))
    return {"deleted": 1}


@router.get("/pictures/{sha256}/thumbnail", **needing("teach"))
def thumbnail(sha256: str, service: CurrentService) -> Response:
    """A small JPEG of a picture. Browsers are told not to keep it, so that it can be forgotten."""
    content = service.project.pictures.thumbnail(_checked(sha256))
    if content is None:
        raise Refused(404, "There is no such picture.")
    return Response(content, media_type="image/jpeg")


def _checked(sha256: str) -> str:
    if not SHA256.fullmatch(sha256):
        raise Refused(404, "There is no such picture.")
    return sha256
