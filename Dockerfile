# `kedge serve` with the pretrained network inside:
#
#     docker build -t kedge .
#     docker run -p 127.0.0.1:8600:8600 -v kedge-project:/project kedge
#
# The first start prints a link with a token for each role. Everything lies in the volume /project.
FROM python:3.12-slim

COPY pyproject.toml constraints.txt README.md LICENSE NOTICE /build/
COPY src /build/src
RUN PIP_CONSTRAINT=/build/constraints.txt pip install --no-cache-dir "/build[serve,pretrained]" \
    && rm -r /build \
    && useradd --create-home kedge \
    && install -d -o kedge /project

USER kedge
VOLUME /project
EXPOSE 8600
HEALTHCHECK --start-period=30s CMD \
    ["python", "-c", "import urllib.request as r; r.urlopen('http://localhost:8600/healthz')"]
# SIGTERM stops gracefully: a round continues when the container starts again.
ENTRYPOINT ["kedge", "serve", "/project", "--listen", "0.0.0.0:8600"]
