"""Routes that everybody may use who may use any: to ask, and to see what there is to ask about."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from kedge.serve import asking
from kedge.serve.limits import network_of
from kedge.serve.middleware import address_of, client_of
from kedge.serve.routes import PICTURES, CurrentRole, CurrentService, needing
from kedge.serve.security import ROLES, SESSION_SECONDS
from kedge.serve.uploads import read_uploads

router = APIRouter(prefix="/api", tags=["ask"])


class Token(BaseModel):
    token: str


@router.post("/session", status_code=200)
def sign_in(request: Request, service: CurrentService, body: Token) -> Response:
    """Sign in with a token: sets a cookie that scripts cannot read."""
    tokens = service.settings.tokens
    if tokens is None:
        return JSONResponse({"role": ROLES[-1]})
    network = network_of(address_of(request.scope))
    role = service.role_of_token(tokens, body.token, network)
    response = JSONResponse({"role": role})
    response.set_cookie(
        tokens.cookie,
        tokens.session(role),
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.headers.get("x-forwarded-proto") == "https",
    )
    return response


@router.delete("/session", status_code=200)
def sign_out(service: CurrentService) -> Response:
    """Sign out: takes the cookie away."""
    response = JSONResponse({})
    if service.settings.tokens is not None:
        response.delete_cookie(service.settings.tokens.cookie, httponly=True, samesite="strict")
    return response


@router.get("/state", **needing("ask"))
def state(request: Request, service: CurrentService, role: CurrentRole) -> Response:
    """Everything small that the page shows; with If-None-Match, only if it has changed."""
    body = json.dumps(service.views.state(role), ensure_ascii=False).encode(errors="replace")
    tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


@router.get("/classes", **needing("ask"))
def classes(service: CurrentService, role: CurrentRole) -> dict[str, Any]:
    """All classes; the pictures of the role 'ask' are none."""
    return {"classes": service.views.classes(with_pictures=role != "ask")}


@router.get("/versions", **needing("ask"))
def versions(service: CurrentService) -> dict[str, Any]:
    """The history of the model, with what each round did."""
    return {"versions": service.views.versions()}


@router.get("/map", **needing("ask"))
def class_map(service: CurrentService) -> dict[str, Any]:
    """Positions of the classes in the plane in which they differ most, from −1 to 1."""
    return service.views.map()


@router.post("/ask", **needing("ask", PICTURES))
async def ask(
    request: Request,
    service: CurrentService,
    top: Annotated[int, Query(ge=1, le=asking.MOST_RANKED)] = 3,
    reject: Annotated[float | None, Query(gt=0, lt=1)] = None,
    format: Literal["json", "csv"] = "json",
) -> Response:
    """Which classes pictures show. `reject`: say "none of these" (null) of pictures that look like
    none; of pictures of known classes about this share is refused too. Nothing is stored."""
    with service.budget.holding(client_of(request.scope)) as held:
        uploads = read_uploads(request, service.limits, held)
        said = await service.ask(uploads, held, top, reject)
    if format == "csv":
        headers = {"content-disposition": 'attachment; filename="answers.csv"'}
        return Response(asking.as_csv(said), media_type="text/csv; charset=utf-8", headers=headers)
    return JSONResponse(said)
