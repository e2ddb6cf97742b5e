"""Arrays -> PNG and SVG, chosen by the suffix of the file. The same numbers give the same bytes."""

from allyouneed.figures.curves import loss_curve as loss_curve
from allyouneed.figures.heatmaps import alignment as alignment
from allyouneed.figures.heatmaps import confusion_matrix as confusion_matrix
from allyouneed.figures.heatmaps import heads as heads
from allyouneed.figures.heatmaps import sinusoid as sinusoid
from allyouneed.figures.sheet import contact_sheet as contact_sheet
from allyouneed.figures.style import check_name as check_name
from allyouneed.figures.word_map import word_map as word_map
