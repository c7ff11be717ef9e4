from graphs import *
