"""Spark's parent of Python workers for the tests: imports their modules once, so that each new worker starts at once."""

import pyspark.daemon
import pyspark.worker

if __name__ == "__main__":
    pyspark.daemon.manager()
