"""BC of RLlib 2.60 on the dataset `expert`, from start to a checkpoint."""

import time
from pathlib import Path

import ray
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

ray.init(num_cpus=4, include_dashboard=False)  # more than the actors below ask for, or RLlib hangs silently
config = (
    BCConfig()
    .environment("CartPole-v1")
    .offline_data(
        input_=["expert/data"],  # a list, and D/data rather than D
        input_read_episodes=True,  # the format `episodes`, which record and convert write
        input_read_batch_size=2,  # episodes that are mapped together: 50 batches of 100 episodes
        map_batches_kwargs={"concurrency": 1, "num_cpus": 1},
        materialize_mapped_data=True,  # map once: else every iteration decodes the data again
        dataset_num_iters_per_learner=50,  # updates in each train()
    )
    .training(lr=0.001, train_batch_size_per_learner=1000)
    .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64]))
    .learners(num_learners=0)  # in this process
    .env_runners(num_env_runners=0)
    .evaluation(evaluation_interval=5, evaluation_duration=20, evaluation_num_env_runners=0)
)
algorithm, begin = config.build_algo(), time.time()
for iteration in range(1, 11):
    result = algorithm.train()
    loss = result["learners"]["default_policy"]["policy_loss"]
    played = result["evaluation"]["env_runners"]["episode_return_mean"] if iteration % 5 == 0 else ""
    print(f"iteration {iteration:2}, {time.time() - begin:4.0f} s: loss {loss:.3f}", played)
algorithm.save_to_path(str(Path("checkpoint").resolve()))
algorithm.stop()
ray.shutdown()
