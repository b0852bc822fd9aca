"""One demo and its page at one address, for any ASGI server; the variable DEMO names its folder."""

import os
import sys
from importlib import import_module
from pathlib import Path

from starlette.staticfiles import StaticFiles

from penstock import asgi_app

demos = Path(__file__).parent
demo = demos / os.environ["DEMO"]
sys.path.insert(0, str(demo))
web = asgi_app(import_module("messages").app, services="all")
web.mount("/demo", StaticFiles(directory=demos / "built" / demo.name))
web.mount("/", StaticFiles(directory=demos / "built" / "page", html=True))
