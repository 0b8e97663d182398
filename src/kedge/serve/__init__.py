"""The service: a page in the browser and an HTTP interface to teach, ask, improve and forget.

- project, database: the folder of a project and its SQLite file
- classes, pictures, versions, jobs, events: what is in it, one file for each kind of row
- uploads, intake: from a request's body to features
- turns: which client's picture is decoded next
- decoding, embedding: decoders that may crash; features in batches
- active: the version in use, as a classifier of all classes
- teaching, asking, deciding, forgetting, importing, download: what a request does
- rounds, improve: rounds in the background; `improve` is the program of their process
- service, views: all of these put together; what the interface shows of them
- app, routes_*: the HTTP interface
- middleware, security, limits, monitoring: what every request goes through
- server: the running program
- client: a client for other programs; imports the standard library alone
"""
