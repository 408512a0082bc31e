"""From a Spark data frame to batches."""

from bowstring.petastorm.spark.spark_dataset_converter import SparkDatasetConverter, make_spark_converter

__all__ = ["SparkDatasetConverter", "make_spark_converter"]
