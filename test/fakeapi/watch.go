package fakeapi

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// watchInterval is how often a watch looks for changes.
const watchInterval = 40 * time.Millisecond

// Watches gives watches that miss nothing since the list before them, which those of
// the fake client do not. The zero value is ready.
type Watches struct {
	mu    sync.Mutex
	lists []map[types.NamespacedName]client.Object
}

// Listed notes what a list has returned, and gives it a resourceVersion.
func (w *Watches) Listed(list client.ObjectList) error {
	objs, err := byName(list)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lists = append(w.lists, objs)
	list.SetResourceVersion(strconv.Itoa(len(w.lists)))
	return nil
}

// Watch tells of the changes since the list of that resourceVersion.
func (w *Watches) Watch(ctx context.Context, since string, list func(context.Context) (client.ObjectList, error)) watch.Interface {
	w.mu.Lock()
	have := map[types.NamespacedName]client.Object{}
	if n, err := strconv.Atoi(since); err == nil && n > 0 && n <= len(w.lists) {
		have = w.lists[n-1]
	}
	w.mu.Unlock()
	events := make(chan watch.Event)
	out := watch.NewProxyWatcher(events)
	go func() {
		defer close(events)
		for {
			now := have
			if l, err := list(ctx); err == nil {
				if now, err = byName(l); err != nil {
					return
				}
			}
			for _, e := range difference(have, now) {
				select {
				case events <- e:
				case <-out.StopChan():
					return
				case <-ctx.Done():
					return
				}
			}
			have = now
			select {
			case <-time.After(watchInterval):
			case <-out.StopChan():
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// ForWatch is a key in the context of a list that a watch makes. It has the number of the last change that the watch has seen.
type ForWatch struct{}

// Watching is the same client with watches that miss nothing since a list.
func Watching(base client.WithWatch) client.WithWatch {
	watches := &Watches{}
	return interceptor.NewClient(base, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if err := c.List(ctx, list, opts...); err != nil {
				return err
			}
			return watches.Listed(list)
		},
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			o := (&client.ListOptions{}).ApplyOptions(opts)
			seen := int64(-1)
			return watches.Watch(ctx, o.Raw.ResourceVersion, func(ctx context.Context) (client.ObjectList, error) {
				now := list.DeepCopyObject().(client.ObjectList)
				return now, c.List(context.WithValue(ctx, ForWatch{}, &seen), now, opts...)
			}), nil
		},
	})
}

func difference(before, now map[types.NamespacedName]client.Object) (events []watch.Event) {
	for name, obj := range now {
		switch old := before[name]; {
		case old == nil:
			events = append(events, watch.Event{Type: watch.Added, Object: obj})
		case old.GetUID() != obj.GetUID():
			events = append(events, watch.Event{Type: watch.Deleted, Object: old}, watch.Event{Type: watch.Added, Object: obj})
		case old.GetResourceVersion() != obj.GetResourceVersion():
			events = append(events, watch.Event{Type: watch.Modified, Object: obj})
		}
	}
	for name, old := range before {
		if now[name] == nil {
			events = append(events, watch.Event{Type: watch.Deleted, Object: old})
		}
	}
	return events
}

func byName(list client.ObjectList) (map[types.NamespacedName]client.Object, error) {
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, err
	}
	out := make(map[types.NamespacedName]client.Object, len(items))
	for _, item := range items {
		obj := item.(client.Object)
		out[client.ObjectKeyFromObject(obj)] = obj
	}
	return out, nil
}

// errUnchanged is what a list for a watch may answer where nothing was written since.
var errUnchanged = errors.New("unchanged")
