"""The REST service: jobs, results, traces and pages over HTTP; `server.app.create_app`, `server.main.serve`."""
