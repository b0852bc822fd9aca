"""The chat as one ASGI application: penstock's doors, and the page that npm has built, at one address."""

from pathlib import Path

from chat import app
from starlette.staticfiles import StaticFiles

from penstock import asgi_app

web = asgi_app(app)
web.mount("/", StaticFiles(directory=Path(__file__).parent / "page" / "built", html=True))
