"""The mean of each channel: images (B, channels, height, width) to features (B, size)."""

from torch import nn

from offline_cli.modules.encoders import ImageNetwork


class MeanColour(ImageNetwork):
    least_side = 1  # of height and width

    def __init__(self, channels, height, width):
        super().__init__()
        self.size, self.layer = 16, nn.Linear(channels, 16)

    def forward(self, images):
        return self.layer(images.mean((2, 3)))
