"""How a cluster's processes come up: ``render(spec) -> LaunchPlan`` is pure, ``start`` is not.

A launcher brings processes up and nothing else; which rank gets which device is planned in one
place, ``jaxcluster.plan.placement``, from what the engines report.
"""
