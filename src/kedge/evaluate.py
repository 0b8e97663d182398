from kedge.evaluation import *
