"""What the routes share: the service of a request, its role, and how uploads are described."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Request

from kedge.serve.security import check_role
from kedge.serve.service import Service


async def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def role_of(request: Request) -> str:
    return str(request.scope["kedge_role"])


# These are coroutines, which need no thread: all of those may be waiting for a lock or a disk.
Number = Annotated[int, Path(ge=0, lt=1 << 53)]  # of a class, a version or a round, in a path
CurrentService = Annotated[Service, Depends(service_of)]
CurrentRole = Annotated[str, Depends(role_of)]


PICTURES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}}
                    },
                }
            },
            "image/*": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


def needing(role: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of a route that only this role and those above it may use; `body` describes
    what it takes, unless its parameters do."""

    async def check(request: Request) -> None:
        check_role(request.scope["kedge_role"], role)

    return {"dependencies": [Depends(check)], "openapi_extra": {"x-role": role, **(body or {})}}
