"""HTTP routes, one subject a file.

Each file has a FastAPI router: it validates the body, calls the packages beside this one, and makes a
response. ``schemas`` has the response models of the OpenAPI document, ``pages`` the static files of the web
page.
"""
