package rail

import (
	"sync"
	"testing"
	"time"
)

func TestDue(t *testing.T) {
	var wg sync.WaitGroup
	wg.Go(func() { Due(time.Now(), time.Time{}, nil, nil) })
	wg.Wait()
}
