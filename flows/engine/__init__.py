"""The only code that knows DVC, Prefect or MLflow."""
