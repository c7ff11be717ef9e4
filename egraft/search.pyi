from search import *
