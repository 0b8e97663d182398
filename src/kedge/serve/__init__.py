"""The service: a page in the browser and an HTTP interface to teach, ask, improve and forget.

project, database     the folder of a project and its SQLite file
classes, pictures, versions, jobs, events     what is in it, one file for each kind of row
decoding, embedding   from uploaded bytes to features, in workers that may crash and in batches
active                the version in use, as a classifier of the classes taught so far
teaching, asking, forgetting      what a request does
rounds, improve       rounds in the background; `improve` is the program of their process
app, routes, uploads  the HTTP interface
security, limits, monitoring      tokens and origins, sizes and rates, metrics and logs
server                the running program
client                a client for other programs; imports the standard library alone
"""
