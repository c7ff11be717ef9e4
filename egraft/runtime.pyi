from runtime import *
