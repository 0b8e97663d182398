"""The HTTP interface as one ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from kedge import __version__
from kedge.errors import KedgeError
from kedge.serve import routes_ask, routes_improve, routes_teach
from kedge.serve.limits import Refused
from kedge.serve.middleware import Guard, answer_to
from kedge.serve.monitoring import give_memory_back
from kedge.serve.security import check_role
from kedge.serve.service import Service

PAGE = Path(__file__).with_name("page")
TRIM_SECONDS = 20.0
ABOUT = (
    "Teach classes with pictures, ask what pictures show, improve the model in rounds, and forget "
    "the pictures. Methods other than GET need the header 'X-Kedge: 1'."
)


def make_app(service: Service) -> ASGIApp:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.rounds.resume_after_start()
        trimming = asyncio.create_task(_trim_memory())
        yield
        trimming.cancel()

    # Pages of documentation would load scripts from elsewhere.
    app = FastAPI(
        title="kedge serve",
        version=__version__,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
    )
    app.state.service = service
    app.add_exception_handler(KedgeError, _kedge_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    for routes in (routes_ask, routes_teach, routes_improve):
        app.include_router(routes.router)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, object]:
        return {"status": "ok", "version": service.active.version}

    @app.get("/metrics", include_in_schema=False)
    def metrics(request: Request) -> PlainTextResponse:
        check_role(request.scope["kedge_role"], "ask")
        text = service.metrics.text(service.gauges())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return FileResponse(PAGE / "index.html", headers={"cache-control": "no-cache"})

    app.mount("/static", _Static(directory=PAGE))
    return Guard(app, service)


async def _trim_memory() -> None:
    while True:
        await asyncio.sleep(TRIM_SECONDS)
        await asyncio.to_thread(give_memory_back)


class _Static(StaticFiles):
    """The files of the page, which browsers ask for again after kedge has been updated."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["cache-control"] = "no-cache"
        return response


async def _kedge_error(request: Request, error: Exception) -> Response:
    return answer_to(error if isinstance(error, Refused) else Refused(409, str(error)))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {404: "There is nothing here.", 405: "This method is not possible here."}
    sentence = sentences.get(error.status_code, f"{error.detail}.")
    return answer_to(Refused(error.status_code, sentence))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    what = f"'{where}': " if where else ""
    return answer_to(Refused(422, f"{what}{first['msg']}."))
