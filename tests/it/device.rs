mod cuda;
mod fake;
