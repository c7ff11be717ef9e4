from cost_model import *
