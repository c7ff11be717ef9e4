from optimizer import *
