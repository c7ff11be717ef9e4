from rules import *
