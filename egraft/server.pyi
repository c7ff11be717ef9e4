from server import *
