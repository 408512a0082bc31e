"""Spark's parent of Python workers for the tests: it has imported what they need, so that each new worker is there at once."""

import pyspark.daemon
import pyspark.worker

if __name__ == "__main__":
    pyspark.daemon.manager()
