from fleet.base import app as app
from fleet.base import Trip, Vehicle
from fleet.tools import *
